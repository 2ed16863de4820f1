"""Label nodes as a call of their own, after the tickets they belong to.

The tickets' keys and values come from the batch that computed them: all of its tokens stand in the past, and every node
sees the prefix, its own ticket's tokens and its ancestors in the label tree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm_runtime.labels import LabelTree
from slm_runtime.layout import Branches, label_branches
from slm_runtime.model_input import MASKED, ModelInput, tree_visibility
from slm_runtime.planning import Batch, Limits


@dataclass(frozen=True)
class Expansion:
    """`tickets` and `nodes` [N] say whose position each entry of the input's `score_index` is."""

    model_input: ModelInput
    tickets: NDArray[np.int64]
    nodes: NDArray[np.int64]


class Expander:
    """Builds the calls that follow one batch. `past_len` is what was in the batch's own past."""

    def __init__(self, batch: Batch, tree: LabelTree, past_len: int, limits: Limits) -> None:
        self._tree = tree
        self._branches: Branches = label_branches(tree)
        self._past_len = past_len
        self._limits = limits
        self._sees, self._lengths = _ticket_visibility(batch)

    def calls(self, chosen: Sequence[tuple[int, ...]]) -> Iterator[Expansion]:
        """Calls that score `chosen[k]`, the nodes of the batch's k-th ticket, for every k."""
        group: list[tuple[int, list[int]]] = []
        used = 0
        for ticket, nodes in enumerate(chosen):
            if not nodes:
                continue
            closure = self._closure(nodes)
            if group and not self._limits.fits(1, used + len(closure), self._past_len + self._sees.shape[1]):
                yield self._call(group, chosen)
                group, used = [], 0
            group.append((ticket, closure))
            used += len(closure)
        if group:
            yield self._call(group, chosen)

    def _closure(self, nodes: Sequence[int]) -> list[int]:
        """The nodes and their ancestors, root excluded, depth first."""
        found = set(nodes)
        for node in nodes:
            while (node := self._tree.parents[node - 1]) and node not in found:
                found.add(node)
        return sorted(found)

    def _call(self, group: Sequence[tuple[int, list[int]]], chosen: Sequence[tuple[int, ...]]) -> Expansion:
        branches, starts = self._branches, np.cumsum([0, *(len(closure) for _, closure in group)])
        index = np.concatenate([np.array(closure) - 1 for _, closure in group])
        owner = np.concatenate([np.full(len(closure), ticket) for ticket, closure in group])
        ends = np.concatenate(
            [
                start + np.searchsorted(closure, branches.ends[np.array(closure) - 1] + 1)
                for start, (_, closure) in zip(starts, group, strict=False)
            ]
        )
        size, batch_len = len(index), self._sees.shape[1]
        bias = np.zeros((1, 1, size, self._past_len + batch_len + size), np.float32)
        bias[0, 0, :, self._past_len : self._past_len + batch_len][~self._sees[owner]] = MASKED
        bias[0, 0, :, self._past_len + batch_len :][~tree_visibility(ends)] = MASKED
        positions = self._past_len + self._lengths[owner] + branches.depths[index]
        scored = [
            (start + closure.index(node), ticket, node)
            for start, (ticket, closure) in zip(starts, group, strict=False)
            for node in chosen[ticket]
        ]
        at, tickets, nodes = np.array(scored, np.int64).T
        return Expansion(ModelInput(branches.token_ids[index][None], positions[None], bias, at), tickets, nodes)


def _ticket_visibility(batch: Batch) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which of the batch's B * S tokens belong to each ticket [tickets, B * S], and how many they are [tickets]."""
    sees, lengths = [], []
    for i, row in enumerate(batch.rows):
        size = len(row)
        for last in row.scored[:, 0]:
            mine = np.zeros(len(batch.rows) * batch.length, np.bool_)
            start = i * batch.length
            mine[start : start + size] = (np.arange(size) <= last) & (last < row.ends)
            sees.append(mine)
            lengths.append(row.depths[last] + 1)
    return np.array(sees), np.array(lengths)
