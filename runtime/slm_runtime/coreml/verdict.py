"""What trying out a graph came to."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from slm_runtime.static_graph import StaticPrecision

VERDICT_FILE = "verdict.json"
Outcome = Literal["passed", "crash", "timeout", "not a number", "mismatch", "refused"]
# Largest difference of a golden log-probability to the reference's, in nats. Rounding every tensor to float16 moves the
# 0.5B's by 0.022, an overflow by 0.9 (export/DESIGN.md).
TOLERANCE_NATS: dict[StaticPrecision, float] = {"fp32": 0.01, "fp16": 0.1}


@dataclass(frozen=True)
class Verdict:
    """`nodes` by provider, in `partitions` pieces; `num_tickets` golden ones were asked; `max_logprob_diff` in nats."""

    outcome: Outcome
    detail: str = ""
    nodes: dict[str, int] = field(default_factory=dict)
    partitions: int = 0
    num_tickets: int = 0
    labels_equal: int = 0
    max_logprob_diff: float | None = None

    @property
    def reason(self) -> str:
        """Outcome and detail, for people."""
        return f"{self.outcome}: {self.detail}" if self.detail else self.outcome


def agrees(precision: StaticPrecision, num_tickets: int, labels_equal: int, worst: float) -> bool:
    """Whether answers are the reference's. float16 may decide a near tie otherwise: there only the numbers count."""
    return worst <= TOLERANCE_NATS[precision] and (precision == "fp16" or labels_equal == num_tickets)


def write_verdict(folder: Path, verdict: Verdict) -> None:
    """Leave the verdict in `folder`, whole or not at all."""
    part = folder / f"{VERDICT_FILE}.part"
    part.write_text(json.dumps(asdict(verdict), indent=2) + "\n", encoding="utf-8")
    part.replace(folder / VERDICT_FILE)


def read_verdict(folder: Path) -> Verdict | None:
    """The verdict in `folder`; None where there is none that can be read."""
    try:
        return Verdict(**json.loads((folder / VERDICT_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
