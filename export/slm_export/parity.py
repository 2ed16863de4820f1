"""How far the runtime's predictions are from the reference's answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm_export.reference import ReferenceScores
from slm_runtime.golden import TOLERANCE_NATS
from slm_runtime.records import Prediction

# exp() of less leaves the range of normal float64 numbers, and its logarithm says nothing any more.
LOGPROB_FLOOR = -690.0


@dataclass(frozen=True)
class WorstTicket:
    """The ticket that differs most; `row` counts the compared tickets from 0.

    `reference_margin` is the distance in (calibrated) nats between the reference's two best labels, None with a single
    label.
    `max_logprob_diff` is None where the runtime gave no answer, for the reason in `error`.
    """

    row: int
    reference_label: str
    runtime_label: str | None
    reference_margin: float | None
    max_logprob_diff: float | None
    reference_tokens: int
    runtime_tokens: int
    error: str | None


@dataclass(frozen=True)
class Agreement:
    """`labels_equal` of `of` tickets, the largest difference of a label's log-probability in nats, and where it is."""

    labels_equal: int
    of: int
    max_logprob_diff: float
    worst: WorstTicket | None

    @property
    def passed(self) -> bool:
        return self.labels_equal == self.of and self.max_logprob_diff <= TOLERANCE_NATS


def compare(reference: Sequence[ReferenceScores], predictions: Sequence[Prediction]) -> Agreement:
    """The agreement of two answers to the same tickets, made by the same rule and without a threshold.

    Where the runtime knows the labels' share of the whole distribution, the log-probabilities are those of the whole
    distribution; else those over the labels. Where it scored only the labels that could win, distances to the winner.
    Differences are of the model's log-probabilities: the task's calibration is taken off the runtime's scores.
    """
    pairs = list(zip(reference, predictions, strict=True))
    diffs = [_max_diff(expected, found) for expected, found in pairs]
    equal = [expected.label == found.label for expected, found in pairs]
    worst = max(range(len(pairs)), key=lambda i: (not equal[i], _rank(diffs[i])), default=None)
    known = [diff for diff in diffs if diff is not None]
    return Agreement(
        labels_equal=sum(equal),
        of=len(pairs),
        max_logprob_diff=max(known, default=0.0),
        worst=None if worst is None else _describe(worst, *pairs[worst], diffs[worst]),
    )


def _max_diff(expected: ReferenceScores, found: Prediction) -> float | None:
    if found.error is not None:
        return None
    if len(found.scores) < len(expected.labels):
        return _max_diff_to_best(expected, found)
    log_mass = _log_sum(expected.logprobs)
    scores = _floored(_normalised(expected.calibrated)), _floored(_logs(list(found.scores.values())))
    wanted, answered = (_normalised(_uncalibrated(logs, expected)) for logs in scores)
    over_labels = wanted - answered
    if found.label_mass is None:
        return float(np.abs(over_labels).max())
    mass_diff = _floored(np.array([log_mass])) - _floored(_logs([found.label_mass]))
    return float(np.abs(over_labels + mass_diff).max())


def _max_diff_to_best(expected: ReferenceScores, found: Prediction) -> float:
    """As `_max_diff` where only the labels that could win were scored in full: their distances to the best one."""
    known = [expected.labels.index(label) for label in found.scores]
    scores = _logs(list(found.scores.values()))
    best = int(np.argmax(scores))
    logprobs = expected.logprobs[known]
    scores = _uncalibrated(scores, expected, known)
    return float(np.abs((logprobs - logprobs[best]) - (scores - scores[best])).max())


def _uncalibrated(
    logs: NDArray[np.float64], expected: ReferenceScores, known: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """Calibrated log-probabilities of the `known` labels (None: all) as the model's own, up to a constant."""
    prior = np.array(expected.prior or [0.0] * len(expected.labels))
    return logs * expected.temperature + (prior if known is None else prior[known])


def _normalised(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    return logprobs - _log_sum(logprobs)


def _log_sum(logprobs: NDArray[np.float64]) -> float:
    largest = logprobs.max()
    return float(largest + np.log(np.exp(logprobs - largest).sum()))


def _logs(probabilities: Sequence[float]) -> NDArray[np.float64]:
    return np.array([math.log(p) if p > 0 else -math.inf for p in probabilities])


def _floored(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(logprobs, LOGPROB_FLOOR)


def _rank(diff: float | None) -> float:
    return math.inf if diff is None else diff


def _describe(row: int, expected: ReferenceScores, found: Prediction, diff: float | None) -> WorstTicket:
    best = np.sort(expected.calibrated)[::-1]
    return WorstTicket(
        row=row,
        reference_label=expected.label,
        runtime_label=found.label,
        reference_margin=float(best[0] - best[1]) if len(best) > 1 else None,
        max_logprob_diff=diff,
        reference_tokens=expected.num_tokens,
        runtime_tokens=found.num_tokens,
        error=found.error,
    )
