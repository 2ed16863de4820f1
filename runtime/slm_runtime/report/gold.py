"""Labels against gold labels: what a run got right, label by label."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from slm_runtime.report.bounded import BoundedCounter
from slm_runtime.report.result_row import ResultRow

MAX_GOLD_LABELS = 1_000


class NoLabel(Enum):
    """Why a row has no label; the value is what the page calls it."""

    BELOW_THRESHOLD = "below threshold"
    FAILED = "failed"


Answer = str | NoLabel


def answer_of(result: ResultRow) -> Answer:
    """The label of a row, or why it has none."""
    if result.error is not None:
        return NoLabel.FAILED
    return NoLabel.BELOW_THRESHOLD if result.label is None else result.label


@dataclass(frozen=True)
class LabelQuality:
    """One label: `support` rows have it as gold label, `predicted` as label, `correct` as both.

    Ratios are None where they would divide by zero.
    """

    label: str
    support: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float | None:
        return self.correct / self.predicted if self.predicted else None

    @property
    def recall(self) -> float | None:
        return self.correct / self.support if self.support else None

    @property
    def f1(self) -> float | None:
        """2 TP / (2 TP + FP + FN)."""
        total = self.support + self.predicted
        return 2 * self.correct / total if total else None


@dataclass(frozen=True)
class Quality:
    """How the rows whose gold label is one of `labels` were answered; a row without a label is wrong.

    `pairs` counts (gold label, answer). `unknown_gold` counts gold labels that are none of the task's, whose rows are
    left out, as are `num_without_gold` rows that have none.
    """

    labels: tuple[LabelQuality, ...]
    pairs: Mapping[tuple[str, Answer], int]
    unknown_gold: Mapping[str, int]
    num_without_gold: int

    @property
    def num_rows(self) -> int:
        return sum(self.pairs.values())

    @property
    def num_unknown(self) -> int:
        return sum(self.unknown_gold.values())

    @property
    def accuracy(self) -> float | None:
        """Share of rows with the right label; None without rows."""
        return sum(quality.correct for quality in self.labels) / self.num_rows if self.num_rows else None

    @property
    def macro_f1(self) -> float | None:
        """Mean F1 of the labels that occur, as gold label or as answer; None without any."""
        values = [quality.f1 for quality in self.labels if quality.f1 is not None]
        return sum(values) / len(values) if values else None

    def num_without_label(self, why: NoLabel) -> int:
        return sum(number for (_, answer), number in self.pairs.items() if answer is why)

    def confusions(self) -> list[tuple[str, str, int]]:
        """Wrong labels, the most frequent pairs first: gold label, label, rows."""
        wrong = [
            (gold, answer, number)
            for (gold, answer), number in self.pairs.items()
            if isinstance(answer, str) and gold != answer
        ]
        return sorted(wrong, key=lambda pair: (-pair[2], pair[0], pair[1]))


class GoldTally:
    """Counts pairs of gold label and answer, row by row, in bounded memory.

    Without `labels`, those of the task, every gold label counts as one of them.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = tuple(labels)
        self._known = frozenset(labels)
        self._pairs: Counter[tuple[str, Answer]] = Counter()
        self._golds = BoundedCounter(MAX_GOLD_LABELS)
        self._unknown = BoundedCounter(MAX_GOLD_LABELS)
        self._num_without_gold = 0

    def add(self, gold: str | None, answer: Answer) -> None:
        if gold is None:
            self._num_without_gold += 1
        elif gold in self._known if self._known else self._golds.add(gold):
            self._pairs[gold, answer] += 1
        else:
            self._unknown.add(gold)

    @property
    def num_with_gold(self) -> int:
        return self._pairs.total() + self._unknown.total

    def quality(self) -> Quality:
        """The counts so far."""
        seen = {*self._golds.named(), *(answer for _, answer in self._pairs if isinstance(answer, str))}
        labels = [*self._labels, *sorted(seen - self._known)]
        return Quality(
            tuple(_by_label(labels, self._pairs)),
            dict(self._pairs),
            dict(self._unknown.items()),
            self._num_without_gold,
        )


def _by_label(labels: Iterable[str], pairs: Mapping[tuple[str, Answer], int]) -> Iterable[LabelQuality]:
    support: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    for (gold, answer), number in pairs.items():
        support[gold] += number
        if isinstance(answer, str):
            predicted[answer] += number
    for label in labels:
        yield LabelQuality(label, support[label], predicted[label], pairs.get((label, label), 0))
