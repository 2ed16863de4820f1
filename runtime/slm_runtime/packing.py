"""Which sequences share a row: neighbours in lexicographic order share beginnings, small ones fill the gaps.

Works on lengths only; nothing is laid out here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from slm_runtime.layout import shared_length
from slm_runtime.tokenizer import TokenIds

# A sequence that shares at most this much with its neighbours may leave them to fill a gap in another row.
LOOSE_SHARE_TOKENS = 4


@dataclass(frozen=True)
class SortedSequences:
    """Sequences in lexicographic order, from token `depth` on, where they all still agree.

    `order[k]` is the index of the k-th one; `shared[k]` how many tokens it has in common with the one before it.
    """

    order: tuple[int, ...]
    lengths: tuple[int, ...]
    shared: tuple[int, ...]
    depth: int

    def part(self, positions: Sequence[int]) -> "SortedSequences":
        """The items at `positions`, ascending, with what each shares with the one that now stands before it."""
        shared = [0]
        for before, position in pairwise(positions):
            shared.append(min(self.shared[before + 1 : position + 1]))
        return SortedSequences(
            tuple(self.order[p] for p in positions),
            tuple(self.lengths[p] for p in positions),
            tuple(shared[: len(positions)]),
            self.depth,
        )

    def below(self, depth: int) -> "SortedSequences":
        """The same items, which agree on `depth` tokens, from there on."""
        return replace(self, depth=depth)


def sort_sequences(sequences: Sequence[TokenIds]) -> SortedSequences:
    """All `sequences` in lexicographic order."""
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    shared = [shared_length(sequences[a], sequences[b]) for a, b in pairwise(order)]
    return SortedSequences(tuple(order), tuple(len(sequences[i]) for i in order), (0, *shared), 0)


@dataclass(frozen=True)
class Group:
    """The sequences of one row, as positions in the sorted order, ascending; `num_tokens` without what lies above."""

    positions: tuple[int, ...]
    num_tokens: int


def tree_tokens(items: SortedSequences, branch_tokens: int) -> int:
    """Tokens of the tree of all items below their depth, label branches included."""
    new = (
        max(length - max(shared, items.depth), 0) for length, shared in zip(items.lengths, items.shared, strict=True)
    )
    return sum(new) + branch_tokens * len(items.order)


def group_rows(items: SortedSequences, branch_tokens: int, capacity: int) -> Iterator[Group]:
    """Groups of at most `capacity` tokens (a longer sequence is a group of its own), every item in exactly one."""
    gaps = _GapFillers(items, branch_tokens, capacity)
    members: list[int] = []
    used, common = 0, 0
    for position in range(len(items.order)):
        common = min(common, items.shared[position])  # with the last member, across neighbours that were taken
        if gaps.taken[position]:
            continue
        cost = items.lengths[position] - max(common, items.depth) + branch_tokens
        if members and used + cost > capacity:
            yield gaps.filled(members, used, position)
            members, used = [], 0
            if gaps.taken[position]:
                continue
            cost = items.lengths[position] - items.depth + branch_tokens
        gaps.taken[position] = True
        members.append(position)
        used, common = used + cost, items.lengths[position]
    if members:
        yield Group(tuple(members), used)


class _GapFillers:
    """Items that may be placed in any row, by their cost there."""

    def __init__(self, items: SortedSequences, branch_tokens: int, capacity: int) -> None:
        self.taken = [False] * len(items.order)
        self._items = items
        self._branch_tokens = branch_tokens
        self._capacity = capacity
        self._by_cost: dict[int, list[int]] = {}
        bonds = [*items.shared[1:], 0]
        for position, (length, before, after) in enumerate(zip(items.lengths, items.shared, bonds, strict=True)):
            if max(before, after) <= items.depth + LOOSE_SHARE_TOKENS:
                self._by_cost.setdefault(length - items.depth + branch_tokens, []).append(position)

    def filled(self, members: list[int], used: int, before: int) -> Group:
        """The group with its gap filled by the largest items that fit, taken from behind position `before`."""
        alone = len(members)
        members = list(members)
        cost = self._capacity - used
        while cost > 0:
            stack = self._by_cost.get(cost, [])
            while stack and (self.taken[stack[-1]] or stack[-1] < before):
                stack.pop()
            if not stack:
                cost -= 1
                continue
            position = stack.pop()
            self.taken[position] = True
            members.append(position)
            used += cost
            cost = min(cost, self._capacity - used)
        positions = tuple(sorted(members))
        if len(members) > alone:  # a filler may share a little with its new neighbours
            used = tree_tokens(self._items.part(positions), self._branch_tokens)
        return Group(positions, used)
