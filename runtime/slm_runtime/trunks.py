"""Big shared trunks: a template header, a forwarded thread. Candidates for being computed once and reused as past."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from slm_runtime.cost import CostModel
from slm_runtime.packing import SortedSequences, tree_tokens

MIN_TRUNK_TOKENS = 32
# A longer sequence always goes through the past, all but its end, piece by piece.
LONGEST_ROW_TOKENS = 1024
LONG_TAIL_TOKENS = 256


@dataclass(frozen=True)
class Split:
    """Sequences divided by what they begin with. Each of `branches` has a depth of its own: its trunk's length."""

    rest: SortedSequences
    branches: tuple[SortedSequences, ...]


def split_trunks(items: SortedSequences, branch_tokens: int, row_tokens: int, cost: CostModel) -> Split:
    """The clusters of `items` whose trunk saves more repeated tokens than a call of its own costs, and the rest."""
    rest: list[int] = []
    branches: list[SortedSequences] = []
    for start, stop in _clusters(items):
        part = items.part(range(start, stop))
        depth = _trunk_length(part, branch_tokens, row_tokens, cost)
        if depth > items.depth:
            branches.append(part.below(depth))
        else:
            rest += range(start, stop)
    return Split(items.part(rest), tuple(branches))


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
        return shortest - LONG_TAIL_TOKENS if shortest - depth > LONGEST_ROW_TOKENS else depth
    common = min(*part.shared[1:], shortest - 1)
    own = common - depth
    rows = math.ceil(tree_tokens(part.below(common), branch_tokens) / max(1, row_tokens - own))
    price = cost.call(1, own, depth) - own
    return common if own > LONGEST_ROW_TOKENS or own * (rows - 1) > price else depth
