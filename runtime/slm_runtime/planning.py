"""Which sequences share a row, which rows share a batch. Pure: no session, no model.

All strategies go through the same two steps and differ only in how they group:

| strategy | row | batch |
|---|---|---|
| item | one sequence | one row, input order |
| naive | one sequence | `NAIVE_ROWS` rows, input order |
| bucketed | one sequence | rows of similar length under the token budget, longest first |
| packed | a tree of many sequences, up to the row capacity | as bucketed |
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slm_runtime.labels import LabelTree
from slm_runtime.layout import Branches, Row, label_branches, lay_out, shared_length
from slm_runtime.tokenizer import TokenIds

Strategy = Literal["packed", "bucketed", "naive", "item"]
NAIVE_ROWS = 32


@dataclass(frozen=True)
class Batch:
    """Rows that run together, padded at their end to the length of the longest one."""

    rows: tuple[Row, ...]

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


def plan_batches(
    sequences: Sequence[TokenIds], tree: LabelTree, strategy: Strategy, batch_tokens: int
) -> Iterator[Batch]:
    """Batches that hold every sequence exactly once.

    A batch has at most `batch_tokens` processed tokens, padding counted, unless a single row is longer.
    """
    branches = label_branches(tree)
    if strategy == "packed":
        rows: Iterable[Row] = (
            lay_out(group, sequences, branches) for group in _tree_groups(sequences, branches, batch_tokens)
        )
    else:
        rows = (lay_out([i], sequences, branches) for i in range(len(sequences)))
    if strategy in ("item", "naive"):
        yield from _fixed_batches(rows, 1 if strategy == "item" else NAIVE_ROWS)
    else:
        yield from _budget_batches(sorted(rows, key=len, reverse=True), batch_tokens)


def _tree_groups(sequences: Sequence[TokenIds], branches: Branches, capacity: int) -> Iterator[list[int]]:
    """Neighbours in lexicographic order, which share the longest beginnings, as many as fit into `capacity` tokens."""
    group: list[int] = []
    used = 0
    for i in sorted(range(len(sequences)), key=sequences.__getitem__):
        shared = shared_length(sequences[group[-1]], sequences[i]) if group else 0
        cost = len(sequences[i]) - shared + len(branches)
        if group and used + cost > capacity:
            yield group
            group, used = [], 0
            cost = len(sequences[i]) + len(branches)
        group.append(i)
        used += cost
    if group:
        yield group


def _fixed_batches(rows: Iterable[Row], count: int) -> Iterator[Batch]:
    group: list[Row] = []
    for row in rows:
        group.append(row)
        if len(group) == count:
            yield Batch(tuple(group))
            group = []
    if group:
        yield Batch(tuple(group))


def _budget_batches(rows: Sequence[Row], batch_tokens: int) -> Iterator[Batch]:
    """Longest first: the peak of memory comes with the first batch, and neighbours have similar lengths."""
    group: list[Row] = []
    for row in rows:
        if group and (len(group) + 1) * len(group[0]) > batch_tokens:
            yield Batch(tuple(group))
            group = []
        group.append(row)
    if group:
        yield Batch(tuple(group))
