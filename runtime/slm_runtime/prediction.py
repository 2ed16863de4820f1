"""Label scores to the prediction of a row: the winner, its margin, the abstention."""

import math

import numpy as np

from slm_runtime.prompt import EncodedTicket
from slm_runtime.records import Prediction, Ticket
from slm_runtime.scorer import ScoredSequence
from slm_runtime.scoring import log_sum_exp
from slm_runtime.task import Task


def predict(ticket: Ticket, encoded: EncodedTicket, scored: ScoredSequence, task: Task) -> Prediction:
    """The prediction of one row. A tie goes to the label that comes first in the task."""
    logprobs = scored.logprobs
    if not np.isfinite(logprobs).all():
        return failure(ticket, "the model returned a score that is not a finite number", encoded)
    probabilities = np.exp(logprobs - log_sum_exp(np.append(logprobs[scored.exact], scored.rest)))
    best = _best(scored)
    score = float(probabilities[best])
    below = task.threshold is not None and score < task.threshold
    return Prediction(
        row=ticket.row,
        id=ticket.id,
        label=None if below else task.labels[best],
        score=score,
        margin=margin(scored) if len(logprobs) > 1 else None,
        scores={task.labels[i]: float(probabilities[i]) for i in np.flatnonzero(scored.exact)},
        label_mass=scored.mass,
        num_tokens=encoded.num_tokens,
        truncated=encoded.truncated,
        rechecked=scored.rechecked,
    )


def margin(scored: ScoredSequence) -> float:
    """The distance in nats between the two best labels; infinite when there is only one, or no finite score."""
    exact = np.sort(scored.logprobs[scored.exact])
    if len(exact) < 2 or not np.isfinite(exact).all():
        return math.inf
    return float(exact[-1] - exact[-2])


def _best(scored: ScoredSequence) -> int:
    """The first of the labels with the highest score."""
    return int(np.argmax(np.where(scored.exact, scored.logprobs, -np.inf)))


def failure(ticket: Ticket, reason: str, encoded: EncodedTicket | None = None) -> Prediction:
    """The prediction of a row that has no label because of `reason`."""
    return Prediction(
        row=ticket.row,
        id=ticket.id,
        num_tokens=encoded.num_tokens if encoded else 0,
        truncated=encoded.truncated if encoded else False,
        error=reason,
    )
