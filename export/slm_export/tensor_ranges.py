"""The largest value of every tensor over many runs of a graph, and what was no number."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT16_MAX = 65504.0


@dataclass(frozen=True)
class TensorRange:
    """`largest` is the largest finite |x|; so many values were infinite or no number."""

    name: str
    largest: float
    infinite: int = 0
    nan: int = 0

    @property
    def is_finite(self) -> bool:
        return not (self.infinite or self.nan)

    @property
    def kind(self) -> str:
        """The name without its layer: `layer_*_scores`."""
        return re.sub(r"\d+", "*", self.name)

    @property
    def headroom(self) -> float:
        """How many times larger its values could be in float16."""
        return FLOAT16_MAX / self.largest if self.largest else float("inf")

    def joined(self, other: "TensorRange") -> "TensorRange":
        return TensorRange(
            self.name, max(self.largest, other.largest), self.infinite + other.infinite, self.nan + other.nan
        )


class TensorRanges:
    """Call it with every tensor of a run, see `onnx_evaluate.Watch`."""

    def __init__(self) -> None:
        self._ranges: dict[str, TensorRange] = {}

    def __call__(self, name: str, tensor: Tensor) -> None:
        found = _range_of(name, tensor)
        self._ranges[name] = found.joined(self._ranges[name]) if name in self._ranges else found

    def overflowed(self) -> list[TensorRange]:
        """Every tensor that held something infinite or no number, in the order of the graph."""
        return [found for found in self._ranges.values() if not found.is_finite]

    def largest_by_kind(self) -> list[TensorRange]:
        """Of every kind the tensor with the largest values, the largest first."""
        return largest_by_kind(self._ranges.values())


def largest_by_kind(ranges: Iterable[TensorRange]) -> list[TensorRange]:
    by_kind: dict[str, TensorRange] = {}
    for found in ranges:
        if found.kind not in by_kind or _badness(found) > _badness(by_kind[found.kind]):
            by_kind[found.kind] = found
    return sorted(by_kind.values(), key=_badness, reverse=True)


def _badness(found: TensorRange) -> tuple[bool, float]:
    return not found.is_finite, found.largest


def _range_of(name: str, tensor: Tensor) -> TensorRange:
    sizes = tensor.abs()
    largest = float(sizes.max())
    if largest < float("inf"):  # false for NaN
        return TensorRange(name, largest)
    nan, infinite = int(sizes.isnan().sum()), int(sizes.isinf().sum())
    finite = torch.where(sizes.isfinite(), sizes, 0.0)
    return TensorRange(name, float(finite.max()), infinite, nan)
