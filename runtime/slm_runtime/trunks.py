"""Big shared trunks: a template header, a forwarded thread. Computed once and reused as past, not once per row."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slm_runtime.cost import CostModel
from slm_runtime.packing import SortedSequences, tree_tokens
from slm_runtime.tokenizer import TokenIds

MIN_TRUNK_TOKENS = 32
# A longer sequence is its own section: all but its end goes through the past, piece by piece.
LONGEST_ROW_TOKENS = 1024
LONG_TAIL_TOKENS = 256


@dataclass(frozen=True)
class Section:
    """Sequences that begin with `trunk`, to be planned together; `items.depth` is the trunk's length."""

    trunk: TokenIds
    items: SortedSequences


def split_sections(
    sequences: Sequence[TokenIds], items: SortedSequences, branch_tokens: int, row_tokens: int, cost: CostModel
) -> Iterator[Section]:
    """Sections that hold every item once. A trunk is taken where it saves more repeated tokens than its call costs."""
    rest: SortedSequences | None = None
    for start, stop in _clusters(items):
        part = items.part(start, stop, items.depth)
        trunk_len = _trunk_length(part, branch_tokens, row_tokens, cost)
        if trunk_len > items.depth:
            inner = items.part(start, stop, trunk_len)
            yield from split_sections(sequences, inner, branch_tokens, row_tokens, cost)
        else:
            rest = part if rest is None else rest.joined(part)
    if rest is not None:
        yield Section(sequences[rest.order[0]][: rest.depth], rest)


def _clusters(items: SortedSequences) -> Iterator[tuple[int, int]]:
    """Runs of neighbours that share at least `MIN_TRUNK_TOKENS` beyond the depth."""
    start = 0
    for position in range(1, len(items.order) + 1):
        if position == len(items.order) or items.shared[position] < items.depth + MIN_TRUNK_TOKENS:
            yield start, position
            start = position


def _trunk_length(part: SortedSequences, branch_tokens: int, row_tokens: int, cost: CostModel) -> int:
    """How many leading tokens of the cluster belong into the past; the depth itself when that does not pay."""
    depth, shortest = part.depth, min(part.lengths)
    if len(part.order) == 1:
        return max(depth, shortest - LONG_TAIL_TOKENS) if shortest - depth > LONGEST_ROW_TOKENS else depth
    common = min(*part.shared[1:], shortest - 1)
    own = common - depth
    rows = math.ceil(tree_tokens(part.part(0, len(part.order), common), branch_tokens) / max(1, row_tokens - own))
    price = cost.call(1, own, depth) - own
    return common if own * (rows - 1) > price or own > LONGEST_ROW_TOKENS else depth
