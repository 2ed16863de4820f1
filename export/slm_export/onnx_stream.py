"""An ONNX graph whose weights never lie in memory together: nodes first, constants made and written one at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from slm_runtime.errors import SourceError

_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class Constant:
    """An initializer of shape `dims`; `make` gives its values, of `data_type`, when they are written."""

    name: str
    data_type: int
    dims: tuple[int, ...]
    make: Callable[[], NDArray[Any]]

    @property
    def num_bytes(self) -> int:
        """Of the values alone."""
        return int(np.prod(self.dims)) * helper.tensor_dtype_to_np_dtype(self.data_type).itemsize

    def header(self) -> bytes:
        """The serialised TensorProto without its values."""
        return TensorProto(name=self.name, data_type=self.data_type, dims=self.dims).SerializeToString()


class GraphWriter:
    """The nodes and constants of one graph in floats of `data_type`. A node is named after its first output."""

    def __init__(self, data_type: int) -> None:
        self.data_type = data_type
        self.float_dtype = helper.tensor_dtype_to_np_dtype(data_type)
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Constant] = {}

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Append a node with one output, and return that."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"node_{output}", **attributes))
        return output

    def halves(self, states: str, size: int) -> tuple[str, str]:
        """`states` cut in two in the middle of its last axis, which is `size` long."""
        outputs = (f"{states}_left", f"{states}_right")
        sizes = self.integers((size // 2, size // 2))
        self.nodes.append(helper.make_node("Split", [states, sizes], outputs, name=f"node_{states}_halves", axis=-1))
        return outputs

    def reshape(self, states: str, dims: Sequence[int], output: str) -> str:
        return self.node("Reshape", [states, self.integers(dims)], output)

    def integers(self, values: Sequence[int]) -> str:
        """The name of a constant that holds `values`; equal ones are one constant."""
        name = "ints_" + "_".join(map(str, values))
        self.constants.setdefault(
            name, Constant(name, TensorProto.INT64, (len(values),), lambda: np.array(values, np.int64))
        )
        return name

    def floats(self, name: str, dims: Sequence[int], make: Callable[[], NDArray[Any]]) -> str:
        """The name of a new constant of the graph's own float type; `make` may give wider floats.

        When it is written: SourceError for a value that is not finite in that type.
        """
        assert name not in self.constants
        self.constants[name] = Constant(
            name, self.data_type, tuple(dims), lambda: _narrowed(name, make(), self.float_dtype)
        )
        return name

    def number(self, name: str, value: float) -> str:
        """The name of a constant [1]; asked for twice it is one constant."""
        if name not in self.constants:
            self.floats(name, (1,), lambda: np.array([value]))
        return name


def save_streamed(model: ModelProto, constants: Sequence[Constant], path: Path) -> None:
    """Write `model`, whose graph has no initializers, with `constants` as its initializers, in one file.

    Not with external data: onnxruntime up to 1.24 cannot read that through its CoreML provider (issues 28005, 29394).
    The file is what ONNX's own serialiser would write but for the order of fields, which readers must not rely on.
    """
    graph = model.graph.SerializeToString(deterministic=True)
    outer = ModelProto()
    outer.CopyFrom(model)
    outer.ClearField("graph")
    sizes = [_tensor_size(constant) for constant in constants]
    key = _key(GraphProto.INITIALIZER_FIELD_NUMBER)
    graph_size = len(graph) + sum(len(key) + len(_varint(size)) + size for size in sizes)
    with path.open("wb") as stream:
        stream.write(outer.SerializeToString(deterministic=True))
        stream.write(_key(ModelProto.GRAPH_FIELD_NUMBER) + _varint(graph_size) + graph)
        for constant, size in zip(constants, sizes, strict=True):
            values = np.ascontiguousarray(constant.make())
            assert values.shape == constant.dims
            assert values.nbytes == constant.num_bytes
            stream.write(key + _varint(size) + constant.header() + _raw_key(constant))
            stream.write(values.data)


def _narrowed(name: str, wide: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        values = wide.astype(dtype)
    if not np.isfinite(values).all():
        raise SourceError(
            f"{name}: holds {np.abs(wide).max():.3g}, the largest {dtype} is {np.finfo(dtype).max:.3g}; "
            "export with --precision fp32"
        )
    return values


def _tensor_size(constant: Constant) -> int:
    return len(constant.header()) + len(_raw_key(constant)) + constant.num_bytes


def _raw_key(constant: Constant) -> bytes:
    return _key(TensorProto.RAW_DATA_FIELD_NUMBER) + _varint(constant.num_bytes)


def _key(field_number: int) -> bytes:
    return _varint(field_number << 3 | _LENGTH_DELIMITED)


def _varint(value: int) -> bytes:
    """Protocol buffers' integers: seven bits a byte, lowest first, the top bit says that more follow."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
