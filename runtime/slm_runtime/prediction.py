"""Label scores to the prediction of a row: calibration, the winner, its margin, the abstention."""

import math

import numpy as np

from slm_runtime.calibration import Calibration
from slm_runtime.prompt import EncodedTicket
from slm_runtime.records import Prediction, Ticket
from slm_runtime.scorer import ScoredSequence
from slm_runtime.scoring import log_sum_exp
from slm_runtime.task import Task


def predict(ticket: Ticket, encoded: EncodedTicket, scored: ScoredSequence, task: Task) -> Prediction:
    """The prediction of one row. A tie goes to the label that comes first in the task."""
    if not np.isfinite(scored.logprobs).all():
        return failure(ticket, "the model returned a score that is not a finite number", encoded)
    calibrated = task.calibration.apply(scored.logprobs)
    if not np.isfinite(calibrated).all():
        return failure(ticket, "the calibration makes a score that is not a finite number", encoded)
    probabilities = np.exp(calibrated - log_sum_exp(np.append(calibrated[scored.exact], scored.rest)))
    best = winner(scored, task.calibration)
    score = float(probabilities[best])
    below = task.threshold is not None and score < task.threshold
    return Prediction(
        row=ticket.row,
        id=ticket.id,
        label=task.abstain if below else task.labels[best],
        score=score,
        margin=margin(scored, task.calibration) if len(calibrated) > 1 else None,
        scores={task.labels[i]: float(probabilities[i]) for i in np.flatnonzero(scored.exact)},
        label_mass=scored.mass,
        num_tokens=encoded.num_tokens,
        truncated=encoded.truncated,
        rechecked=scored.rechecked,
    )


def winner(scored: ScoredSequence, calibration: Calibration) -> int:
    """The index of the best label; of equal ones the first."""
    return int(np.argmax(np.where(scored.exact, calibration.apply(scored.logprobs), -np.inf)))


def margin(scored: ScoredSequence, calibration: Calibration) -> float:
    """The distance between the two best labels in calibrated nats; infinite with one label, or no finite score."""
    exact = np.sort(calibration.apply(scored.logprobs)[scored.exact])
    if len(exact) < 2 or not np.isfinite(exact).all():
        return math.inf
    return float(exact[-1] - exact[-2])


def failure(ticket: Ticket, reason: str, encoded: EncodedTicket | None = None) -> Prediction:
    """The prediction of a row that has no label because of `reason`."""
    return Prediction(
        row=ticket.row,
        id=ticket.id,
        num_tokens=encoded.num_tokens if encoded else 0,
        truncated=encoded.truncated if encoded else False,
        error=reason,
    )
