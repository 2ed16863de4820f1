"""What fits graphs of fixed shapes. Pure: lengths in, lengths out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from slm_runtime.static_graph import StaticGraphSpec


@dataclass(frozen=True, order=True)
class Bucket:
    """One fixed shape: S tokens after P past ones. A smaller bucket sorts first."""

    num_tokens: int
    past_len: int


@dataclass(frozen=True)
class Room:
    """The buckets that can run, smallest first; at least one."""

    buckets: tuple[Bucket, ...]

    @classmethod
    def of_graphs(cls, graphs: Iterable[StaticGraphSpec]) -> Self:
        return cls(tuple(sorted(Bucket(graph.num_tokens, graph.past_len) for graph in graphs)))

    @property
    def past_tokens(self) -> int:
        """The longest past that any bucket takes."""
        return max(bucket.past_len for bucket in self.buckets)

    def row_tokens(self, past_len: int) -> int:
        """The longest row that can follow a past of `past_len` tokens."""
        return max((b.num_tokens for b in self.buckets if b.past_len >= past_len), default=0)

    def bucket(self, num_tokens: int, past_len: int) -> Bucket | None:
        """The smallest bucket that holds such a row after such a past."""
        return next((b for b in self.buckets if b.num_tokens >= num_tokens and b.past_len >= past_len), None)

    def capacities(self, past_len: int) -> list[int]:
        """The row lengths, ascending, that leave no padding after a past of `past_len` tokens."""
        return sorted({b.num_tokens for b in self.buckets if b.past_len >= past_len})

    def tokens_to_skip(self, num_tokens: int, branch_tokens: int, past_len: int) -> int | None:
        """How much of a sequence has to go into the past, behind `past_len` tokens, so that the rest fits a row.

        `branch_tokens` label nodes and at least one token of the sequence stay in the row. None: it fits nowhere.
        """
        choices = (
            max(0, num_tokens + branch_tokens - bucket.num_tokens)
            for bucket in self.buckets
            if past_len + max(0, num_tokens + branch_tokens - bucket.num_tokens) <= bucket.past_len
        )
        return min((skip for skip in choices if skip < num_tokens), default=None)

    def longest_prompt(self, branch_tokens: int, past_len: int) -> int:
        """Tokens of the longest prompt that fits, `past_len` of them in the past; 0 when none does.

        `branch_tokens` label nodes stand behind it.
        """
        fitting = (b for b in self.buckets if b.past_len >= past_len and b.num_tokens > branch_tokens)
        return max((b.past_len + b.num_tokens - branch_tokens for b in fitting), default=0)
