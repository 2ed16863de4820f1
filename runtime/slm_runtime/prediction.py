"""Label scores to the prediction of a row: the winner, its margin, the abstention."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm_runtime.prompt import EncodedTicket
from slm_runtime.records import Prediction, Ticket
from slm_runtime.scoring import log_sum_exp
from slm_runtime.task import Task


@dataclass(frozen=True)
class ScoredSequence:
    """`logprobs` [C] of the labels in nats, and their share of the whole distribution where it is known."""

    logprobs: NDArray[np.float64]
    mass: float | None


def predict(ticket: Ticket, encoded: EncodedTicket, scored: ScoredSequence, task: Task) -> Prediction:
    """The prediction of one row. A tie goes to the label that comes first in the task."""
    logprobs = scored.logprobs
    if not np.isfinite(logprobs).all():
        return failure(ticket, "the model returned a score that is not a finite number", encoded)
    probabilities = np.exp(logprobs - log_sum_exp(logprobs))
    best = int(np.argmax(logprobs))
    score = float(probabilities[best])
    runner_up = np.delete(logprobs, best)
    below = task.threshold is not None and score < task.threshold
    return Prediction(
        row=ticket.row,
        id=ticket.id,
        label=None if below else task.labels[best],
        score=score,
        margin=float(logprobs[best] - runner_up.max()) if len(runner_up) else None,
        scores=dict(zip(task.labels, map(float, probabilities), strict=True)),
        label_mass=scored.mass,
        num_tokens=encoded.num_tokens,
        truncated=encoded.truncated,
    )


def failure(ticket: Ticket, reason: str, encoded: EncodedTicket | None = None) -> Prediction:
    """The prediction of a row that has no label because of `reason`."""
    return Prediction(
        row=ticket.row,
        id=ticket.id,
        num_tokens=encoded.num_tokens if encoded else 0,
        truncated=encoded.truncated if encoded else False,
        error=reason,
    )
