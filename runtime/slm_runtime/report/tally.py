"""Everything the page says about the rows, counted while they pass; memory does not grow with texts or reasons."""

import heapq
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slm_runtime.report.bounded import OTHERS, BoundedCounter
from slm_runtime.report.gold import GoldTally, NoLabel, answer_of
from slm_runtime.report.result_row import ResultRow
from slm_runtime.report.tickets import TicketFacts
from slm_runtime.report.visible import cut, plain

TEXT_CHARS = 300
VALUE_CHARS = 80
REASON_CHARS = 240
MAX_REASONS = 1_000
EXAMPLE_ROWS = 5
_DIGITS = re.compile(r"0x[0-9A-Fa-f]+|\d[\d,.]*")


@dataclass(frozen=True)
class CloseCall:
    """A row whose two best labels were close. Text and values are cut; `num_chars` is the text's whole length.

    `best` is the label, or would be above the threshold; it and `runner_up` are None where the output does not tell.
    """

    row: int
    id: str | None
    best: str | None
    has_label: bool
    runner_up: str | None
    score: float | None
    margin: float
    text: str | None
    num_chars: int
    gold: str | None


@dataclass(frozen=True)
class Reason:
    """Errors that differ in numbers only; `rows` are the first of them."""

    text: str
    count: int
    rows: tuple[int, ...]


class CloseCalls:
    """The rows with the lowest margins, `limit` of them; of equal ones the first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[float, int, CloseCall]] = []

    def add(self, result: ResultRow, facts: TicketFacts) -> None:
        """Keep the row if it is close enough so far; rows without a margin never are."""
        if result.margin is None or not self._limit:
            return
        place = (-result.margin, -result.row)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, (*place, _close_call(result, result.margin, facts)))
        elif place > self._heap[0][:2]:
            heapq.heapreplace(self._heap, (*place, _close_call(result, result.margin, facts)))

    def ranked(self) -> list[CloseCall]:
        """The closest first."""
        return [call for _, _, call in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


class Reasons:
    """Errors by what they say apart from numbers."""

    def __init__(self, max_reasons: int = MAX_REASONS) -> None:
        self._max_reasons = max_reasons
        self._found: dict[str, Reason] = {}

    def add(self, error: str, row: int) -> None:
        text = cut(error, REASON_CHARS)
        key = _DIGITS.sub("#", text)
        if key not in self._found and len(self._found) >= self._max_reasons:
            key = text = OTHERS
        before = self._found.get(key, Reason(text, 0, ()))
        rows = before.rows if len(before.rows) >= EXAMPLE_ROWS else (*before.rows, row)
        self._found[key] = Reason(before.text if before.text == text else key, before.count + 1, rows)

    def ranked(self) -> list[Reason]:
        """The most frequent first."""
        return sorted(self._found.values(), key=lambda reason: (-reason.count, reason.rows))


class Tally:
    """Counts of all rows so far; `labels` are the task's where they are known, `review` how many close calls are kept.

    `margins` are in nats, one per row that has one; `prompt_lengths` counts rows by their tokens, where the output
    tells. `gold` is None where nobody asked.
    """

    def __init__(self, *, labels: Sequence[str], review: int, with_gold: bool) -> None:
        self.num_rows = 0
        self.num_failed = 0
        self.num_below_threshold = 0
        self.num_truncated = 0
        self.num_rechecked = 0
        self.labels = BoundedCounter()
        self.margins = array("d")
        self.prompt_lengths: Counter[int] = Counter()
        self.close_calls = CloseCalls(review)
        self.reasons = Reasons()
        self.gold = GoldTally(labels) if with_gold else None

    def add(self, result: ResultRow, facts: TicketFacts) -> None:
        """Count one row."""
        self.num_rows += 1
        self.num_truncated += result.truncated
        self.num_rechecked += result.rechecked
        if result.num_tokens:
            self.prompt_lengths[result.num_tokens] += 1
        if result.margin is not None:
            self.margins.append(result.margin)
        answer = answer_of(result)
        if result.error is not None:
            self.num_failed += 1
            self.reasons.add(result.error, result.row)
        elif answer is NoLabel.BELOW_THRESHOLD:
            self.num_below_threshold += 1
        elif isinstance(answer, str) and not self.labels.add(answer):
            answer = OTHERS
        if self.gold is not None:
            self.gold.add(facts.gold, answer)
        self.close_calls.add(result, facts)


def _close_call(result: ResultRow, margin: float, facts: TicketFacts) -> CloseCall:
    ranked = heapq.nlargest(2, result.scores, key=lambda label: result.scores[label])
    best = result.label or next(iter(ranked), None)
    return CloseCall(
        row=result.row,
        id=None if result.id is None else cut(plain(result.id), VALUE_CHARS),
        best=_short(best),
        has_label=result.label is not None,
        runner_up=_short(next((label for label in ranked if label != best), None)),
        score=result.score,
        margin=margin,
        text=None if facts.text is None else cut(facts.text, TEXT_CHARS),
        num_chars=len(facts.text or ""),
        gold=_short(facts.gold),
    )


def _short(value: str | None) -> str | None:
    return None if value is None else cut(value, VALUE_CHARS)
