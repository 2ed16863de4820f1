"""Which sequences share a row, which rows share a batch, what goes into the past. Pure: no session, no model.

All strategies go through the same steps and differ only in how they group:

| strategy | row | batch |
|---|---|---|
| item | one sequence | one row, input order |
| naive | one sequence | `NAIVE_ROWS` rows, input order |
| bucketed | one sequence | rows of similar length, longest first |
| packed | a tree of many sequences | as bucketed; big shared trunks come from the past |

All but the end of a very long sequence goes through the past in every strategy: no row is longer than
`LONGEST_ROW_TOKENS`.

The row capacity and the cut into batches are the ones that the cost model finds cheapest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from slm_runtime.cost import CostModel
from slm_runtime.labels import LabelTree
from slm_runtime.layout import Branches, Row, label_branches, lay_out
from slm_runtime.packing import Group, SortedSequences, group_rows, sort_sequences
from slm_runtime.tokenizer import TokenIds
from slm_runtime.trunks import LONG_TAIL_TOKENS, LONGEST_ROW_TOKENS, split_trunks

Strategy = Literal["packed", "bucketed", "naive", "item"]
NAIVE_ROWS = 32
ROW_CAPACITIES = (96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True)
class Limits:
    """`batch_tokens` processed in one call, padding included; `max_pairs`: most attention scores (per head) of a call.

    `past_len` tokens are in the past of every call. A row alone may be longer than `batch_tokens`.
    """

    batch_tokens: int
    max_pairs: int
    past_len: int

    def fits(self, rows: int, length: int, past_len: int) -> bool:
        tokens = rows * length
        return tokens <= self.batch_tokens and tokens * (past_len + length) <= self.max_pairs


@dataclass(frozen=True)
class Batch:
    """Rows that run together, padded at their end to the length of the longest one.

    `trunk` are the tokens after the prefix that all of them begin with: they are in the past, not in the rows.
    """

    rows: tuple[Row, ...]
    trunk: TokenIds = ()

    @property
    def length(self) -> int:
        """S, the padded length."""
        return max(map(len, self.rows))

    @property
    def num_tokens(self) -> int:
        """Real tokens, padding not counted."""
        return sum(map(len, self.rows))

    @property
    def num_processed(self) -> int:
        """B * S, padding counted."""
        return len(self.rows) * self.length

    @property
    def sequences(self) -> NDArray[np.int64]:
        """The sequences in the order in which `score_index` lists their positions."""
        return np.concatenate([row.sequences for row in self.rows])

    def score_index(self) -> NDArray[np.int64]:
        """Flat indices into B * S: for every sequence in turn, its scored nodes."""
        return np.concatenate([(row.scored + i * self.length).ravel() for i, row in enumerate(self.rows)])


class Planner(Protocol):
    """Makes batches for one decoder and says what they cost there."""

    def batches(
        self, sequences: Sequence[TokenIds], tree: LabelTree, strategy: Strategy, limits: Limits
    ) -> Iterator[Batch]: ...

    def price(self, rows: int, length: int, past_len: int) -> float: ...


@dataclass(frozen=True)
class DynamicPlanner:
    """For a decoder that takes rows of any length."""

    cost: CostModel

    def batches(
        self, sequences: Sequence[TokenIds], tree: LabelTree, strategy: Strategy, limits: Limits
    ) -> Iterator[Batch]:
        """As `plan_batches`."""
        return plan_batches(sequences, tree, strategy, limits, self.cost)

    def price(self, rows: int, length: int, past_len: int) -> float:
        """As `CostModel.call`."""
        return self.cost.call(rows, length, past_len)


def plan_batches(
    sequences: Sequence[TokenIds], tree: LabelTree, strategy: Strategy, limits: Limits, cost: CostModel
) -> Iterator[Batch]:
    """Batches that hold every sequence exactly once, within `limits` unless a single row exceeds them."""
    if not sequences:
        return
    branches = label_branches(tree)
    if strategy == "packed":
        plan = plan_tree(sort_sequences(sequences), len(branches), limits, cost)
        for section in sorted(plan.sections, key=lambda section: max(section.items.lengths, default=0), reverse=True):
            yield from _lay_out_section(section, sequences, branches)
        return
    for i in (i for i, sequence in enumerate(sequences) if len(sequence) > LONGEST_ROW_TOKENS):
        skip = len(sequences[i]) - LONG_TAIL_TOKENS
        yield Batch((lay_out([i], sequences, branches, skip),), sequences[i][:skip])
    rows = [lay_out([i], sequences, branches) for i, s in enumerate(sequences) if len(s) <= LONGEST_ROW_TOKENS]
    if strategy == "bucketed":
        rows.sort(key=len, reverse=True)
        lengths = [len(row) for row in rows]
        cuts = cut_batches(lengths, limits, limits.past_len, cost)
    else:
        step = 1 if strategy == "item" else NAIVE_ROWS
        cuts = [(start, min(start + step, len(rows))) for start in range(0, len(rows), step)]
    for start, stop in cuts:
        yield Batch(tuple(rows[start:stop]))


@dataclass(frozen=True)
class Section:
    """Sequences that agree on `items.depth` tokens, in rows, longest first, and batches: (start, stop) of rows."""

    items: SortedSequences
    groups: tuple[Group, ...]
    cuts: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TreePlan:
    """Sections, and what they cost together."""

    sections: tuple[Section, ...]
    price: float


def plan_tree(items: SortedSequences, branch_tokens: int, limits: Limits, cost: CostModel) -> TreePlan:
    """The cheaper of two plans: everything in rows, or big trunks in the past and the rest in rows."""
    past_len = limits.past_len + items.depth
    capacities = [c for c in ROW_CAPACITIES if limits.fits(1, c, past_len)] or [limits.batch_tokens]
    plain = min(
        (_plan_rows(items, branch_tokens, capacity, limits, cost) for capacity in capacities), key=lambda p: p.price
    )
    split = split_trunks(items, branch_tokens, limits.batch_tokens, cost)
    if not split.branches:
        return plain
    plans = [plan_tree(split.rest, branch_tokens, limits, cost)] if split.rest.order else []
    trunk_price = 0.0
    for branch in split.branches:
        plans.append(plan_tree(branch, branch_tokens, limits, cost))
        trunk_price += cost.call(1, branch.depth - items.depth, past_len)
    price = trunk_price + sum(plan.price for plan in plans)
    sections = tuple(section for plan in plans for section in plan.sections)
    too_long = any(group.num_tokens > LONGEST_ROW_TOKENS for group in plain.sections[0].groups)
    return TreePlan(sections, price) if too_long or price < plain.price else plain


def _plan_rows(items: SortedSequences, branch_tokens: int, capacity: int, limits: Limits, cost: CostModel) -> TreePlan:
    """Everything in rows of at most `capacity` tokens."""
    past_len = limits.past_len + items.depth
    groups = sorted(group_rows(items, branch_tokens, capacity), key=lambda group: group.num_tokens, reverse=True)
    lengths = [group.num_tokens for group in groups]
    cuts = cut_batches(lengths, limits, past_len, cost)
    price = sum(cost.call(stop - start, lengths[start], past_len) for start, stop in cuts)
    return TreePlan((Section(items, tuple(groups), tuple(cuts)),), price)


def _lay_out_section(section: Section, sequences: Sequence[TokenIds], branches: Branches) -> Iterator[Batch]:
    items = section.items
    for start, stop in section.cuts:
        rows = []
        for group in section.groups[start:stop]:
            indices = [items.order[position] for position in group.positions]
            rows.append(lay_out(indices, sequences, branches, items.depth))
        yield Batch(tuple(rows), sequences[items.order[0]][: items.depth])


def cut_batches(lengths: Sequence[int], limits: Limits, past_len: int, cost: CostModel) -> list[tuple[int, int]]:
    """The cheapest cut of rows, longest first, into runs of neighbours within the limits: (start, stop) of each.

    Padding is part of the cost, so a batch ends where the next row is so short that a call of its own is cheaper.
    """
    best, came_from = [0.0], [0]
    for stop in range(1, len(lengths) + 1):
        candidates = []
        for start in range(stop - 1, -1, -1):
            if stop - start > 1 and not limits.fits(stop - start, lengths[start], past_len):
                break
            candidates.append((best[start] + cost.call(stop - start, lengths[start], past_len), start))
        price, start = min(candidates)
        best.append(price)
        came_from.append(start)
    cuts, stop = [], len(lengths)
    while stop:
        cuts.append((came_from[stop], stop))
        stop = came_from[stop]
    return cuts[::-1]
