"""Evaluate a static graph node by node in PyTorch, each result rounded as a device of that precision would keep it.

onnxruntime's CPU provider computes float16 graphs in float32 between its own casts, so it cannot show what overflows.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional

Watch = Callable[[str, Tensor], None]
Operator = Callable[[list[Tensor], dict[str, Any]], Tensor | Sequence[Tensor]]


class Evaluation:
    """A graph of float tensors, ready to be evaluated; `rounding` float16 rounds every input, weight and result."""

    def __init__(self, model: ModelProto, rounding: torch.dtype = torch.float32) -> None:
        self._nodes = list(model.graph.node)
        self._outputs = [value.name for value in model.graph.output]
        self._rounding = rounding
        self._constants = {tensor.name: self._constant(tensor) for tensor in model.graph.initializer}
        self._uses = Counter(name for node in self._nodes for name in node.input) + Counter(self._outputs)

    def run(self, feeds: Mapping[str, NDArray[Any]], watch: Watch | None = None) -> dict[str, NDArray[np.float32]]:
        """The graph's outputs for `feeds`; `watch` sees every tensor by name as soon as it is there."""
        with torch.inference_mode():
            tensors = {name: self._rounded(torch.from_numpy(np.asarray(value))) for name, value in feeds.items()}
            if watch:
                for name, tensor in tensors.items():
                    watch(name, tensor)
            self._run_nodes(tensors, watch)
        return {name: tensors[name].numpy() for name in self._outputs}

    def _run_nodes(self, tensors: dict[str, Tensor], watch: Watch | None) -> None:
        """Add what every node makes to `tensors`, and remove what no later node needs."""
        uses = Counter(self._uses)
        for node in self._nodes:
            operands = [self._constants[name] if name in self._constants else tensors[name] for name in node.input]
            for name, tensor in zip(node.output, self._results(node, operands), strict=True):
                tensors[name] = tensor
                if watch:
                    watch(name, tensor)
            for name in node.input:
                uses[name] -= 1
                if not uses[name]:
                    tensors.pop(name, None)

    def _results(self, node: NodeProto, operands: list[Tensor]) -> list[Tensor]:
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        result = OPERATORS[node.op_type](operands, attributes)
        results = [result] if isinstance(result, Tensor) else list(result)
        return [self._rounded(tensor) for tensor in results]

    def _rounded(self, tensor: Tensor) -> Tensor:
        """Float32 that holds only values of the rounding type; what is too large becomes infinite."""
        return tensor.to(self._rounding).float()

    def _constant(self, tensor: Any) -> Tensor:
        value = torch.from_numpy(numpy_helper.to_array(tensor).copy())
        return self._rounded(value) if value.is_floating_point() else value


def _gemm(operands: list[Tensor], attributes: dict[str, Any]) -> Tensor:
    assert attributes == {"transB": 1}
    return functional.linear(*operands)


def _layer_norm(operands: list[Tensor], attributes: dict[str, Any]) -> Tensor:
    states, scale = operands
    return functional.layer_norm(states, states.shape[-1:], scale, eps=attributes["epsilon"])


OPERATORS: dict[str, Operator] = {
    "Add": lambda x, _: x[0] + x[1],
    "Sub": lambda x, _: x[0] - x[1],
    "Mul": lambda x, _: x[0] * x[1],
    "Div": lambda x, _: x[0] / x[1],
    "Max": lambda x, _: torch.maximum(x[0], x[1]),
    "Sqrt": lambda x, _: x[0].sqrt(),
    "Sigmoid": lambda x, _: x[0].sigmoid(),
    "Softmax": lambda x, a: x[0].softmax(a["axis"]),
    "ReduceMean": lambda x, a: x[0].mean(a["axes"], keepdim=bool(a["keepdims"])),
    "ReduceMax": lambda x, a: x[0].amax(a["axes"], keepdim=bool(a["keepdims"])),
    "MatMul": lambda x, _: x[0] @ x[1],
    "Gemm": _gemm,
    "Transpose": lambda x, a: x[0].permute(a["perm"]).contiguous(),
    "Reshape": lambda x, _: x[0].reshape(x[1].tolist()),
    "Concat": lambda x, a: torch.cat(x, a["axis"]),
    "Split": lambda x, a: x[0].split(x[1].tolist(), a["axis"]),
    "LayerNormalization": _layer_norm,
}
