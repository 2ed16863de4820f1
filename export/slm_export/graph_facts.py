"""What can be known of an ONNX graph without running it: types and shapes of all values, constants, producers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper, numpy_helper, shape_inference

from slm_runtime.errors import FormatError

# Shape inference reads small constants (shapes, axes, sizes) and must not copy large ones.
_SMALL_CONSTANT_BYTES = 4096
DYNAMIC = -1


@dataclass(frozen=True)
class Value:
    """Type and shape of one value; `dims` is None where not even the rank is known, unknown sizes are `DYNAMIC`."""

    data_type: str
    dims: tuple[int, ...] | None


@dataclass(frozen=True)
class GraphFacts:
    """A model and what was found out about it. `constants` are the initializers that are not inputs as well."""

    model: ModelProto
    opset: int
    values: Mapping[str, Value]
    constants: Mapping[str, TensorProto]
    producers: Mapping[str, NodeProto]

    @classmethod
    def of_model(cls, model: ModelProto) -> Self:
        """Raises onnx.shape_inference.InferenceError where the graph contradicts itself."""
        graph = model.graph
        inputs = {value.name for value in graph.input}
        inferred = shape_inference.infer_shapes(_without_weights(model), strict_mode=True, data_prop=True).graph
        found = [*inferred.input, *inferred.value_info, *inferred.output]
        values = {value.name: _described(value) for value in found}
        for tensor in graph.initializer:
            values[tensor.name] = Value(TensorProto.DataType.Name(tensor.data_type), tuple(tensor.dims))
        return cls(
            model,
            next((entry.version for entry in model.opset_import if not entry.domain), 0),
            values,
            {tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs},
            {name: node for node in graph.node for name in node.output},
        )

    def dims(self, name: str) -> tuple[int, ...] | None:
        """The shape of a value, None where nothing is known of it."""
        value = self.values.get(name)
        return value.dims if value else None

    def since_version(self, node: NodeProto) -> int:
        """The version of the node's operator in the model's opset; 1 for operators that ONNX does not define."""
        if not defs.has(node.op_type, node.domain):
            return 1
        return defs.get_schema(node.op_type, self.opset, node.domain).since_version

    def integers(self, name: str) -> list[int] | None:
        """The values of a small integer constant, None where `name` is none."""
        if name not in self.constants or self.values[name].data_type != "INT64":
            return None
        return constant_values(self.constants[name]).ravel().tolist()


def attributes_of(node: NodeProto) -> dict[str, Any]:
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def constant_values(tensor: TensorProto) -> NDArray[Any]:
    return numpy_helper.to_array(tensor)


def is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def is_finite(tensor: TensorProto) -> bool:
    """Whether all of a float constant's values are numbers; true for others."""
    values = constant_values(tensor)
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _described(value: ValueInfoProto) -> Value:
    tensor = value.type.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") else DYNAMIC for d in tensor.shape.dim)
    return Value(TensorProto.DataType.Name(tensor.elem_type), dims if tensor.HasField("shape") else None)


def _without_weights(model: ModelProto) -> ModelProto:
    """A copy in which large constants are inputs of the same type and shape."""
    graph = model.graph
    known = {value.name for value in graph.input}
    small: list[TensorProto] = []
    inputs: list[ValueInfoProto] = list(graph.input)
    for tensor in graph.initializer:
        if tensor.ByteSize() <= _SMALL_CONSTANT_BYTES and not is_external(tensor):
            small.append(tensor)
        elif tensor.name not in known:
            inputs.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    light = helper.make_graph(graph.node, graph.name, inputs, graph.output, small, value_info=graph.value_info)
    return helper.make_model(light, opset_imports=model.opset_import, ir_version=model.ir_version)


def load_graph(path: Path) -> ModelProto:
    """The model in a file; data that lies outside of the file is not read. Raises FormatError."""
    try:
        return onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise FormatError(f"{path}: cannot be read as a graph ({error}); export the bundle again") from error
