"""A linear layer in integers: one scale per row of activations, one per column of outputs.

A row's integers depend on that row only, and integer sums are exact, so batch mates and padding cannot change them.
Weights stay within 7 bits: pairs of unsigned and signed 8-bit products then fit the 16 bits in which processors without
VNNI add them (MlasGemmU8S8KernelAvx2).
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from slm_export.int8.rotation import mix_columns

MAX_WEIGHT = 63
MAX_ACTIVATION = 127
ZERO_POINT = 128
# A row of zeros has no scale of its own.
MIN_SCALE = 1e-12


class IntegerProduct(torch.autograd.Function):
    """`states` [..., K], quantised row by row, times int8 weights [K, N], scaled back: [..., N].

    In ONNX two products of the same states share the quantised rows: onnxruntime merges equal nodes.
    """

    @staticmethod
    def symbolic(g: Any, states: Any, weight: Any, scale: Any) -> Any:
        step, zero = _constant(g, 1 / MAX_ACTIVATION, torch.float32), _constant(g, ZERO_POINT, torch.uint8)
        magnitude = g.op("ReduceMax", g.op("Abs", states), axes_i=[-1], keepdims_i=1)
        magnitude = g.op("Max", magnitude, _constant(g, MIN_SCALE, torch.float32))
        rows = g.op("QuantizeLinear", g.op("Div", states, magnitude), step, zero)
        product = g.op("com.microsoft::MatMulIntegerToFloat", rows, weight, step, scale, zero)
        sizes = [*states.type().varyingSizes()[:-1], *scale.type().sizes()]
        return g.op("Mul", product, magnitude).setType(states.type().with_sizes(sizes))

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, scale: Tensor) -> Tensor:  # noqa: ARG004
        magnitude = states.abs().amax(-1, keepdim=True).clamp(min=MIN_SCALE)
        rows = (states / magnitude * MAX_ACTIVATION).round()
        return rows @ weight.float() * (scale / MAX_ACTIVATION) * magnitude


def _constant(g: Any, value: float, dtype: torch.dtype) -> Any:
    return g.op("Constant", value_t=torch.tensor(value, dtype=dtype))


class QuantizedLinear(nn.Module):
    """`rounded` weights [N, K], integers within MAX_WEIGHT, and their `scale` [N], in the place of an nn.Linear.

    `mix`, an orthogonal block, is applied to the columns of the input first; the weights were mixed before rounding.
    """

    def __init__(self, rounded: Tensor, scale: Tensor, bias: Tensor | None, mix: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Buffer(rounded.T.contiguous().to(torch.int8))
        self.scale = nn.Buffer(scale.float())
        self.bias = None if bias is None else nn.Buffer(bias.float())
        self.mix = None if mix is None else nn.Buffer(mix.float())

    def forward(self, states: Tensor) -> Tensor:
        if self.mix is not None:
            states = mix_columns(states, self.mix)
        product = cast("Tensor", IntegerProduct.apply(states, self.weight, self.scale))
        return product if self.bias is None else product + self.bias
