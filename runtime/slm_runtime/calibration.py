"""What a task knows about the model's bias: a temperature and a prior per label, fixed before the run."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm_runtime.errors import TaskError

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Label c decides with `(logprob_c - prior_c) / temperature`; scores are the softmax of these over the labels.

    `prior` is in nats, in the order of the task's labels; empty means 0 for all. The default changes nothing, to the
    last bit.

    Raises:
        TaskError: a number that is not finite, or a temperature that is not above 0.
    """

    temperature: float = 1.0
    prior: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise TaskError(f"calibration: temperature is {self.temperature}, expected a finite number above 0")
        if odd := [nats for nats in self.prior if not math.isfinite(nats)]:
            raise TaskError(f"calibration: a prior is {odd[0]}, expected a finite number of nats")

    @property
    def is_neutral(self) -> bool:
        """True when it changes nothing."""
        return self.temperature == 1 and not any(self.prior)

    def shifted(self, logprobs: Float64) -> Float64:
        """`logprobs` [..., C] without the prior, still in the model's own nats."""
        return logprobs - np.array(self.prior) if self.prior else logprobs

    def apply(self, logprobs: Float64) -> Float64:
        """The calibrated log-probabilities [..., C], not normalised. What overflows becomes infinite."""
        with np.errstate(over="ignore"):
            return self.shifted(logprobs) / self.temperature

    def joint_bound(self, bound: float, labels: NDArray[np.int64]) -> float:
        """Upper bound of log(sum of exp(calibrated)) over `labels`, whose probabilities have a sum of `exp(bound)`.

        Hoelder's inequality: the sum of w * p ** (1 / T) is at most the q-norm of w times sum(p) ** (1 / T), where
        w = exp(-prior / T), and q = T / (T - 1) for T above 1, else infinity: the largest w.
        """
        log_weights = -np.array(self.prior)[labels] / self.temperature if self.prior else np.zeros(len(labels))
        if self.temperature <= 1:
            return bound / self.temperature + float(log_weights.max())
        power = self.temperature / (self.temperature - 1)
        return bound / self.temperature + float(np.logaddexp.reduce(power * log_weights)) / power


NEUTRAL = Calibration()
