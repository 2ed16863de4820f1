"""Temperature, prior and threshold from rows with right labels. Pure numpy, no randomness.

A calibrated log-probability is `scale * (logprob - centre) + bias`, up to the row's normaliser: multinomial logistic
regression with one weight for all labels and one bias per label. Its loss is convex, so Newton's method finds the one
best fit. The penalty keeps a label with few rows near the centre.
"""

from dataclasses import dataclass

import numpy as np

from slm_runtime.calibration import Calibration
from slm_runtime.scoring import Float64, log_sum_exp
from slm_runtime.tune_metrics import Int64

# The penalty takes biases and scale for normal, around 0 and around 1, with this standard deviation.
BIAS_DEVIATION_NATS = 1.0
SCALE_DEVIATION = 1.0
# A model that is no better than chance, or always right, would ask for a scale of 0 or infinity.
MIN_SCALE, MAX_SCALE = 0.05, 20.0
MAX_STEPS = 100
# Newton's decrement in nats, over all rows, at which the fit is done.
CONVERGED_NATS = 1e-10
DIGITS = 4


@dataclass(frozen=True)
class _Fit:
    """The penalised loss in nats over all rows, and the parameters: the scale, then the biases [C]."""

    loss: float
    parameters: Float64


def fit_calibration(logprobs: Float64, gold: Int64, content_free: Float64) -> Calibration:
    """The calibration of [N, C] log-probabilities that makes the right labels [N] likeliest.

    Biases are kept near the prior `content_free` [C] or near none, whichever fits better. The prior's mean is 0; all
    numbers are rounded to `DIGITS` decimals, so that a file holds exactly what was measured.
    """
    fits = [(centre, _fit(logprobs - centre, gold)) for centre in (content_free, np.zeros_like(content_free))]
    centre, best = min(fits, key=lambda pair: pair[1].loss)
    scale, biases = float(best.parameters[0]), best.parameters[1:]
    return rounded(Calibration(1 / scale, tuple((centre - biases / scale).tolist())))


def rounded(calibration: Calibration) -> Calibration:
    """`calibration` as it is written to a file: a common shift of the prior, which changes nothing, is taken off."""
    prior = np.array(calibration.prior)
    nats = np.round(prior - prior.mean(), DIGITS) + 0.0  # no -0.0
    return Calibration(round(calibration.temperature, DIGITS), tuple(nats.tolist()))


def _fit(logprobs: Float64, gold: Int64) -> _Fit:
    """The best fit whose scale lies within the limits; beyond a limit the best one lies on it, the loss is convex."""
    free = _newton(logprobs, gold, None)
    scale = float(free.parameters[0])
    return (
        free
        if MIN_SCALE <= scale <= MAX_SCALE
        else _newton(logprobs, gold, float(np.clip(scale, MIN_SCALE, MAX_SCALE)))
    )


def _newton(logprobs: Float64, gold: Int64, fixed_scale: float | None) -> _Fit:
    parameters = np.zeros(logprobs.shape[1] + 1)
    parameters[0] = 1.0 if fixed_scale is None else fixed_scale
    moving = slice(0 if fixed_scale is None else 1, None)
    loss = _loss(parameters, logprobs, gold)
    for _ in range(MAX_STEPS):
        gradient, hessian = _derivatives(parameters, logprobs, gold)
        step = np.zeros_like(parameters)
        step[moving] = np.linalg.solve(hessian[moving, moving], gradient[moving])
        decrement = float(gradient @ step)
        if decrement < CONVERGED_NATS:
            break
        size = 1.0
        while (trial := _loss(parameters - size * step, logprobs, gold)) > loss - 0.25 * size * decrement:
            size /= 2
            if size < 1e-9:  # rounding hides what is left to gain
                return _Fit(loss, parameters)
        parameters, loss = parameters - size * step, trial
    return _Fit(loss, parameters)


def _precisions(num_parameters: int) -> Float64:
    return np.array([SCALE_DEVIATION**-2] + [BIAS_DEVIATION_NATS**-2] * (num_parameters - 1))


def _loss(parameters: Float64, logprobs: Float64, gold: Int64) -> float:
    scores = parameters[0] * logprobs + parameters[1:]
    likelihood = scores[np.arange(len(gold)), gold] - log_sum_exp(scores)
    distance = parameters - np.eye(len(parameters))[0]
    return float(-likelihood.sum() + 0.5 * (_precisions(len(parameters)) * distance**2).sum())


def _derivatives(parameters: Float64, logprobs: Float64, gold: Int64) -> tuple[Float64, Float64]:
    """Gradient [1 + C] and Hessian [1 + C, 1 + C] of the loss."""
    scores = parameters[0] * logprobs + parameters[1:]
    shares = np.exp(scores - log_sum_exp(scores)[:, None])
    precisions = _precisions(len(parameters))
    errors = shares.copy()
    errors[np.arange(len(gold)), gold] -= 1
    distance = parameters - np.eye(len(parameters))[0]
    gradient = np.concatenate([[(errors * logprobs).sum()], errors.sum(axis=0)]) + precisions * distance
    spread = shares * (logprobs - (shares * logprobs).sum(axis=1, keepdims=True))
    hessian = np.diag(precisions)
    hessian[0, 0] += (spread * logprobs).sum()
    hessian[0, 1:] += spread.sum(axis=0)
    hessian[1:, 0] += spread.sum(axis=0)
    hessian[1:, 1:] += np.diag(shares.sum(axis=0)) - shares.T @ shares
    return gradient, hessian


def fit_threshold(calibrated: Float64, gold: Int64, max_error: float) -> float | None:
    """The smallest threshold at which at most the share `max_error` of the accepted rows is wrong.

    It stands halfway between the scores of the last row accepted and the first one refused, in as few decimals as
    that allows; 0 when all rows are accepted. None when even the best rows are wrong too often.
    """
    logprobs = calibrated - log_sum_exp(calibrated)[:, None]
    scores, wrong = np.exp(logprobs.max(axis=1)), logprobs.argmax(axis=1) != gold
    levels, members = np.unique(scores, return_inverse=True)
    num_wrong = np.bincount(members, wrong)[::-1].cumsum()[::-1]
    num_accepted = np.bincount(members)[::-1].cumsum()[::-1]
    possible = np.flatnonzero(num_wrong / num_accepted <= max_error)
    if not len(possible):
        return None
    return 0.0 if possible[0] == 0 else _between(float(levels[possible[0] - 1]), float(levels[possible[0]]))


def _between(low: float, high: float) -> float:
    middle = (low + high) / 2
    short = (round(middle, digits) for digits in range(2, 17))
    return next((value for value in short if low < value <= high), high)
