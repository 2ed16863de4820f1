"""Which sequences share a row of a fixed shape. Rows run one by one, so every batch is one row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slm_runtime.coreml.room import Room
from slm_runtime.cost import CostModel
from slm_runtime.labels import LabelTree
from slm_runtime.layout import Branches, label_branches, lay_out
from slm_runtime.packing import Group, SortedSequences, group_rows, sort_sequences
from slm_runtime.planning import Batch, Limits, Strategy
from slm_runtime.tokenizer import TokenIds


@dataclass(frozen=True)
class StaticPlanner:
    """Plans rows that fit `room`, and prices them by their buckets. Every sequence must fit: `Room.tokens_to_skip`."""

    room: Room
    cost: CostModel

    def price(self, rows: int, length: int, past_len: int) -> float:
        """Every row is a call of its own and costs what its bucket costs. A longer one is a trunk, made in pieces."""
        longest = self.room.row_tokens(past_len)
        whole_pieces, rest = divmod(length, longest)
        price = whole_pieces * self._call(longest, past_len)
        return rows * (price + self._call(rest, past_len) if rest else price)

    def batches(
        self, sequences: Sequence[TokenIds], tree: LabelTree, strategy: Strategy, limits: Limits
    ) -> Iterator[Batch]:
        """Batches of one row that hold every sequence exactly once.

        `packed` fills rows with many sequences, `bucketed` runs the longest first, the others keep the input's order.
        A sequence that is too long for a row has its beginning in the past.
        """
        branches = label_branches(tree)
        whole = []
        for i, sequence in enumerate(sequences):
            skip = self.room.tokens_to_skip(len(sequence), len(branches), limits.past_len)
            assert skip is not None, f"a sequence of {len(sequence)} tokens was planned and fits no bucket"
            if skip:
                yield Batch((lay_out([i], sequences, branches, skip),), sequence[:skip])
            else:
                whole.append(i)
        if strategy == "packed" and whole:
            items = sort_sequences([sequences[i] for i in whole])
            for group in self._cheapest_groups(items, len(branches), limits):
                members = [whole[items.order[position]] for position in group.positions]
                yield Batch((lay_out(members, sequences, branches),))
        else:
            yield from self._single_rows(whole, sequences, branches, strategy)

    def _single_rows(
        self, whole: list[int], sequences: Sequence[TokenIds], branches: Branches, strategy: Strategy
    ) -> Iterator[Batch]:
        if strategy == "bucketed":
            whole.sort(key=lambda i: len(sequences[i]), reverse=True)
        for i in whole:
            yield Batch((lay_out([i], sequences, branches),))

    def _cheapest_groups(self, items: SortedSequences, branch_tokens: int, limits: Limits) -> list[Group]:
        """Rows of the capacity that costs least in all, the biggest rows first."""
        capacities = self.room.capacities(limits.past_len)
        within = [capacity for capacity in capacities if capacity <= limits.batch_tokens] or capacities[:1]
        plans = [list(group_rows(items, branch_tokens, capacity)) for capacity in within]
        best = min(plans, key=lambda plan: sum(self._call(group.num_tokens, limits.past_len) for group in plan))
        return sorted(best, key=lambda group: group.num_tokens, reverse=True)

    def _call(self, length: int, past_len: int) -> float:
        bucket = self.room.bucket(length, past_len)
        assert bucket is not None, f"a row of {length} tokens after {past_len} was planned and fits no bucket"
        return self.cost.call(1, bucket.num_tokens, bucket.past_len)
