"""What `OUTPUT.run.json` says, for readers that must not trust it: a value that is not as expected is not there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm_runtime.run_record import read_record

LARGEST = 1e15
SHORTEST_STEP_S = 0.001  # what is recorded is rounded to that


@dataclass(frozen=True)
class LengthTokens:
    """Tokens that the decoder processed in rows of one padded length, and how many of them were no padding."""

    length: int
    real: int
    processed: int


@dataclass(frozen=True)
class RunFacts:
    """The record of a run; `data` is empty where there is none."""

    data: Mapping[str, Any]

    @classmethod
    def of_output(cls, output: Path) -> "RunFacts":
        return cls(read_record(output))

    def __bool__(self) -> bool:
        return bool(self.data)

    def value(self, *keys: str) -> Any:
        """What stands under these keys, one inside the other; None where there is nothing."""
        found: Any = self.data
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def text(self, *keys: str) -> str | None:
        found = self.value(*keys)
        return found if isinstance(found, str) else None

    def number(self, *keys: str) -> float | None:
        """A number from 0 to LARGEST."""
        return _number(self.value(*keys))

    @property
    def labels(self) -> tuple[str, ...]:
        """What a row may be labelled: the labels of the task in its order, then that of rows below the threshold."""
        found = [label for label in _list(self.value("task", "labels")) if isinstance(label, str)]
        below = self.text("task", "abstain") or self.text("flags", "abstain")
        return tuple(dict.fromkeys([*found, *([below] if found and below else [])]))

    @property
    def rows_per_s(self) -> float | None:
        """Rows finished by this run itself per second of it."""
        rows, seconds = self.number("counts", "rows"), self.number("timings", "run_s")
        if rows is None or not seconds:
            return None
        return (rows - (self.number("counts", "recalled") or 0)) / seconds

    @property
    def timeline(self) -> list[tuple[float, float]]:
        """(seconds, rows finished until then), both increasing, from (0, 0) on; empty when nothing was recorded."""
        points = [(0.0, 0.0)]
        for pair in _list(self.value("timeline")):
            if isinstance(pair, Sequence) and len(pair) == 2:
                seconds, rows = _number(pair[0]), _number(pair[1])
                if seconds is None or rows is None:
                    continue
                if seconds - points[-1][0] >= SHORTEST_STEP_S and rows >= points[-1][1]:
                    points.append((seconds, rows))
        return points if len(points) > 1 else []

    @property
    def lengths(self) -> list[LengthTokens]:
        """Tokens by padded row length, shortest first."""
        found = []
        for entry in _list(self.value("lengths")):
            if isinstance(entry, Mapping):
                numbers = [_number(entry.get(key)) for key in ("length", "real_tokens", "processed_tokens")]
                if all(number is not None for number in numbers):
                    found.append(LengthTokens(*(int(number or 0) for number in numbers)))
        return sorted((entry for entry in found if entry.processed), key=lambda entry: entry.length)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= LARGEST else None
