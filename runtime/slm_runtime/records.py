"""What goes in and what comes out: `Ticket` and `Prediction`, the two ends of the pipeline."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TicketId = str | int | float | None


@dataclass(frozen=True)
class Ticket:
    """One input row.

    `row` counts input rows from 0. `text` is None exactly when `error` says why the row cannot be classified.
    `fields` holds columns of the input as text: all of a CSV or TSV file, those that were asked for of other inputs.
    """

    row: int
    id: TicketId
    text: str | None
    error: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """The label of one input row, or the reason why it has none.

    `score` is the softmax over the labels, `margin` the distance between the two best labels in nats (None with
    one label), both after the task's calibration. `label_mass` is the share of the model's whole distribution that the
    labels hold (None where the scoring rule does not compute it).
    """

    row: int
    id: TicketId
    label: str | None = None
    score: float | None = None
    margin: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    label_mass: float | None = None
    num_tokens: int = 0
    truncated: bool = False
    rechecked: bool = False
    error: str | None = None

    def to_record(self) -> dict[str, Any]:
        """The output record of the command line, in the order of its keys."""
        return {
            "id": self.id,
            "row": self.row,
            "label": self.label,
            "score": self.score,
            "margin": self.margin,
            "scores": dict(self.scores),
            "label_mass": self.label_mass,
            "num_tokens": self.num_tokens,
            "truncated": self.truncated,
            "rechecked": self.rechecked,
            "error": self.error,
        }

    def to_json(self) -> str:
        """The output record as one JSON object on one line."""
        return json.dumps(self.to_record(), ensure_ascii=False, allow_nan=False)
