"""Orthogonal changes of basis that spread outliers over many columns before rounding.

Folded into the weights they change nothing in exact arithmetic. Method: QuaRot (arXiv 2404.00456).
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from slm_export.decoder import DecoderLayer, PrefillStep
from slm_export.families import Architecture

ROTATION_SEED = 0
# One matrix product of so many columns: wide enough to spread an outlier, 3 % of the decoder's arithmetic.
MAX_BLOCK = 128


def hadamard(size: int) -> Tensor:
    """The orthogonal Hadamard matrix [size, size], float64; `size` is a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(size)


def power_of_two_in(size: int) -> int:
    """The largest power of two that divides `size`."""
    return size & -size


def random_orthogonal(size: int) -> Tensor:
    """An orthogonal matrix [size, size], float64, the same every time: Hadamard blocks mixed by a random rotation."""
    generator = torch.Generator().manual_seed(ROTATION_SEED)
    block = power_of_two_in(size)
    normal = torch.randn(size // block, size // block, dtype=torch.float64, generator=generator)
    signs = torch.randint(0, 2, (size, 1), generator=generator) * 2.0 - 1.0
    return torch.kron(torch.linalg.qr(normal).Q.contiguous(), hadamard(block)) * signs


class RotatedNorm(nn.Module):
    """The final norm of a rotated step: back to the model's own basis, where the head reads."""

    def __init__(self, norm: nn.Module, rotation: Tensor) -> None:
        super().__init__()
        self.epsilon = float(cast("float", norm.variance_epsilon))
        scale = cast("Tensor", norm.weight).double()
        self.back = nn.Linear(len(rotation), len(rotation))
        self.back.weight = _frozen(scale[:, None] * rotation)
        self.back.bias = _frozen(torch.zeros_like(scale))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.back(hidden / torch.sqrt(hidden.pow(2).mean(-1, keepdim=True) + self.epsilon))


def rotate(step: PrefillStep) -> None:
    """Rotate the residual stream and the attention values of `step`, in place; its results stay what they were.

    Afterwards the weights of its norms are ones, and `step.enter` and `step.leave` change the basis.
    """
    rotation = random_orthogonal(step.arch.hidden_size)
    step.enter = nn.Linear(len(rotation), len(rotation), bias=False)
    step.enter.weight = _frozen(rotation.T)
    for module in step.layers:
        layer = cast("DecoderLayer", module)
        _fold_norm(layer.attention_norm, layer.qkv)
        _fold_norm(layer.mlp_norm, layer.gate, layer.up)
        for reader in (layer.qkv, layer.gate, layer.up):
            reader.weight = _frozen(reader.weight.double() @ rotation)
        for writer in (layer.out, layer.down):
            _rotate_outputs(writer, rotation)
        _rotate_values(layer)
    step.leave = RotatedNorm(step.norm, rotation)


def _fold_norm(norm: nn.Module, *readers: nn.Linear) -> None:
    weight = cast("Tensor", norm.weight).double()
    for reader in readers:
        reader.weight = _frozen(reader.weight.double() * weight)
    norm.weight = _frozen(torch.ones_like(weight))


def _rotate_outputs(writer: nn.Linear, rotation: Tensor) -> None:
    writer.weight = _frozen(rotation.T @ writer.weight.double())
    if writer.bias is not None:
        writer.bias = _frozen(writer.bias.double() @ rotation)


def value_mix(arch: Architecture) -> Tensor:
    """What the columns of attention values are multiplied with, block by block: [block, block], float64, symmetric."""
    return hadamard(min(power_of_two_in(arch.head_dim), MAX_BLOCK))


def _rotate_values(layer: DecoderLayer) -> None:
    """Attention mixes the rows of a head's values: a rotation of its columns passes through to the output product."""
    arch, mix = layer.arch, value_mix(layer.arch)
    block = len(mix)
    first = (arch.num_heads + arch.num_kv_heads) * arch.head_dim
    weight = layer.qkv.weight.double()
    weight[first:] = (mix @ weight[first:].unflatten(0, (-1, block))).flatten(0, 1)
    layer.qkv.weight = _frozen(weight)
    if layer.qkv.bias is not None:
        bias = layer.qkv.bias.double()
        bias[first:] = (bias[first:].unflatten(0, (-1, block)) @ mix).flatten()
        layer.qkv.bias = _frozen(bias)
    layer.out.weight = _frozen(mix_columns(layer.out.weight.double(), mix))


def mix_columns(states: Tensor, mix: Tensor) -> Tensor:
    """Every block of len(mix) columns of `states` [..., X] times `mix`."""
    leading, size = states.shape[:-1], states.shape[-1]  # reshapes with these sizes stay dynamic in the trace
    return (states.reshape(*leading, -1, len(mix)) @ mix).reshape(*leading, size)


def _frozen(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.float(), requires_grad=False)
