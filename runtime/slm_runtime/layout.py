"""Token sequences laid out as one row of a tree.

Tokens stand in depth-first order and `ends[j]` is the index after the subtree of token j, so token i sees token j
exactly when j <= i < ends[j]. One sequence is a chain; sequences that share a beginning share its tokens; every
sequence carries the label tree as branches after its last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slm_runtime.labels import LabelTree
from slm_runtime.tokenizer import TokenIds

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """A row of S tokens. `depths` [S] counts from the end of what is in the past.

    `scored` [sequences, scored nodes] are the indices, within the row, of the positions to score; `sequences` says
    whose they are.
    """

    token_ids: Int64
    depths: Int64
    ends: Int64
    sequences: Int64
    scored: Int64

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Branches:
    """The label tree in the form in which it is appended to a sequence: relative depths and subtree ends."""

    token_ids: Int64
    depths: Int64
    ends: Int64
    scored: Int64

    def __len__(self) -> int:
        return len(self.token_ids)


def label_branches(tree: LabelTree) -> Branches:
    """`tree` without its root. `scored` is relative to the sequence's last token, which is 0."""
    count = len(tree.token_ids)
    depths = np.zeros(count + 1, np.int64)
    ends = np.arange(1, count + 2)
    for node, parent in enumerate(tree.parents, start=1):
        depths[node] = depths[parent] + 1
    for node in range(count, 0, -1):
        parent = tree.parents[node - 1]
        ends[parent] = max(ends[parent], ends[node])
    return Branches(
        np.array(tree.token_ids, np.int64),
        depths[1:] - 1,
        ends[1:] - 1,
        np.array(tree.scored_nodes, np.int64),
    )


def shared_length(first: TokenIds, second: TokenIds) -> int:
    """How many tokens the two sequences have in common from the start."""
    limit = min(len(first), len(second))
    return next((i for i in range(limit) if first[i] != second[i]), limit)


def lay_out(indices: Sequence[int], sequences: Sequence[TokenIds], branches: Branches, skip: int = 0) -> Row:
    """The row that holds `sequences[i]` from token `skip` on for every i in `indices`.

    They must be in lexicographic order of sequence, agree on the first `skip` tokens, and be longer.
    """
    chosen = [sequences[i][skip:] for i in indices]
    shared = [0, *(shared_length(a, b) for a, b in pairwise(chosen))]
    size = sum(len(s) - k + len(branches) for s, k in zip(chosen, shared, strict=True))
    token_ids, depths, ends = (np.empty(size, np.int64) for _ in range(3))
    scored = np.empty((len(chosen), len(branches.scored)), np.int64)
    path = np.empty(max(map(len, chosen)), np.int64)  # path[d] is the index of the open token at depth d
    cursor = open_depth = 0
    for number, (sequence, kept) in enumerate(zip(chosen, shared, strict=True)):
        ends[path[kept:open_depth]] = cursor
        stop = cursor + len(sequence) - kept
        token_ids[cursor:stop] = sequence[kept:]
        depths[cursor:stop] = np.arange(kept, len(sequence))
        path[kept : len(sequence)] = np.arange(cursor, stop)
        open_depth, last = len(sequence), path[len(sequence) - 1]
        cursor = stop + len(branches)
        token_ids[stop:cursor] = branches.token_ids
        depths[stop:cursor] = branches.depths + len(sequence)
        ends[stop:cursor] = branches.ends + stop
        scored[number] = np.where(branches.scored == 0, last, branches.scored - 1 + stop)
    ends[path[:open_depth]] = cursor
    return Row(token_ids, depths, ends, np.array(indices, np.int64), scored)
