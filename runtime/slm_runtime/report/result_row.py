"""One record of an output, and what is said of one that cannot be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slm_runtime.errors import InputError

RESULT_COLUMNS = ("label", "score", "margin", "error")


@dataclass(frozen=True)
class ResultRow:
    """One record. What CSV does not hold is empty: `scores`, and `num_tokens` is None; `fields` is CSV's alone."""

    row: int
    id: object = None
    label: str | None = None
    score: float | None = None
    margin: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    num_tokens: int | None = None
    truncated: bool = False
    rechecked: bool = False
    error: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlacedRow:
    """A record and where it stands: `line 12`, `row 7`."""

    place: str
    result: ResultRow


def damaged(name: Path | str, place: str, problem: object) -> InputError:
    """The error for a record that `slm-run classify` has not written like that."""
    return InputError(f"{name}: {place}: {problem}; give a whole output of slm-run classify")
