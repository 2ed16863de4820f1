"""How good label probabilities are, given the right labels. Pure numpy."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from slm_runtime.scoring import Float64, log_sum_exp

NUM_BINS = 15
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Quality:
    """`log_loss` in nats. With a threshold, `coverage` is the share of rows whose score reaches it, and
    `accepted_accuracy` the accuracy on these (None where there are none).
    """

    num_rows: int
    accuracy: float
    macro_f1: float
    calibration_error: float
    log_loss: float
    coverage: float | None = None
    accepted_accuracy: float | None = None

    def to_json(self) -> dict[str, float | int | None]:
        return asdict(self)


def quality_of(calibrated: Float64, gold: Int64, threshold: float | None = None) -> Quality:
    """The quality of [N, C] log-probabilities, normalised or not, for the right labels [N]; N is at least 1."""
    logprobs = calibrated - log_sum_exp(calibrated)[:, None]
    answers = logprobs.argmax(axis=1)
    scores, correct = np.exp(logprobs.max(axis=1)), answers == gold
    accepted = None if threshold is None else scores >= threshold
    return Quality(
        num_rows=len(gold),
        accuracy=float(correct.mean()),
        macro_f1=macro_f1(answers, gold),
        calibration_error=calibration_error(scores, correct),
        log_loss=float(-logprobs[np.arange(len(gold)), gold].mean()),
        coverage=None if accepted is None else float(accepted.mean()),
        accepted_accuracy=None if accepted is None or not accepted.any() else float(correct[accepted].mean()),
    )


def macro_f1(answers: Int64, gold: Int64) -> float:
    """The mean F1 of the labels that occur, as gold label or as answer."""
    values = [
        2 * np.count_nonzero((answers == label) & (gold == label))
        / (np.count_nonzero(answers == label) + np.count_nonzero(gold == label))
        for label in np.union1d(answers, gold)
    ]  # fmt: skip
    return float(np.mean(values))


def calibration_error(scores: Float64, correct: NDArray[np.bool_]) -> float:
    """The expected calibration error over `NUM_BINS` bins of equal width, each without its lower edge.

    The mean over all rows of the distance between accuracy and mean score in the row's bin.
    """
    bins = np.clip(np.ceil(scores * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    gaps = np.bincount(bins, weights=correct, minlength=NUM_BINS) - np.bincount(bins, scores, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / len(scores))
