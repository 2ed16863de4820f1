"""Attention's weighted mean without rounding in its sums: they come out the same in any order.

Rounding a float that differs in its last bit can give another integer, and one integer changes all that follows. So
that neighbours in a row, padding and batches cannot change a result, weights and values are put on grids whose products
add up exactly in float32: no partial sum needs more than its 24 bits.
"""

import math

from torch import Tensor

from slm_export.decoder import SoftmaxMean, fold_queries

# Steps of a weight between 0 and the largest of its row; of a value between 0 and the largest seen in calibration.
WEIGHT_STEPS = 4096
VALUE_STEPS = 256
# Adding and subtracting it rounds a float32 of less than 2**22 to an integer.
ROUNDING = 1.5 * 2.0**23


class ExactMean(SoftmaxMean):
    """`SoftmaxMean` on grids. `value_step` is the power of two between neighbouring values."""

    def __init__(self, largest_value: float) -> None:
        super().__init__()
        self.value_step = 2.0 ** math.ceil(math.log2(max(largest_value, 1e-30) / VALUE_STEPS))

    def prepare(self, values: Tensor) -> Tensor:
        shift = ROUNDING * self.value_step
        return values + shift - shift

    def forward(self, scores: Tensor, values: Tensor) -> Tensor:
        top = scores.amax(-1, keepdim=True) - math.log(WEIGHT_STEPS)
        weights = fold_queries((scores - top).exp() + ROUNDING - ROUNDING, values)
        return (weights @ values) / weights.sum(-1, keepdim=True)
