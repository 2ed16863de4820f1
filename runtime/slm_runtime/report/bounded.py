"""Counts of values that somebody else chose, in bounded memory."""

from collections import Counter
from collections.abc import Iterable

MAX_VALUES = 10_000
MAX_CHARS = 1_000
OTHERS = "(others)"


class BoundedCounter:
    """Counts the first MAX_VALUES different values by name, and the others together."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._max_values = max_values
        self._counts: Counter[str] = Counter()
        self._num_others = 0

    def add(self, value: str) -> bool:
        """Count the value; True when it was counted by its name."""
        if len(value) > MAX_CHARS or (len(self._counts) >= self._max_values and value not in self._counts):
            self._num_others += 1
            return False
        self._counts[value] += 1
        return True

    @property
    def total(self) -> int:
        return self._counts.total() + self._num_others

    def named(self) -> list[str]:
        """The values counted by name, the most frequent first, then those that came first."""
        return [value for value, _ in self._counts.most_common()]

    def items(self) -> Iterable[tuple[str, int]]:
        """Values and counts, the most frequent first; all others at the end."""
        yield from self._counts.most_common()
        if self._num_others:
            yield OTHERS, self._num_others
