"""A static graph as a CoreML program, operator by operator, as onnxruntime's provider writes it.

coremltools cannot run or compile it on Linux, but it checks every operator's types and shapes by CoreML's own rules.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813 (its usual name)
from coremltools.converters.mil.mil import Function, Program, types
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

# What float16 inputs need: macOS 13.
TARGET = ct.target.iOS16
FLOAT_TYPES = {TensorProto.FLOAT: types.fp32, TensorProto.FLOAT16: types.fp16}
Values = list[Any]


def _reduced(operator: Any) -> Callable[..., Any]:
    def lower(values: Values, attributes: dict[str, Any], name: str) -> Any:
        return operator(x=values[0], axes=attributes["axes"], keep_dims=bool(attributes["keepdims"]), name=name)

    return lower


def _pairwise(operator: Any) -> Callable[..., Any]:
    return lambda values, _, name: operator(x=values[0], y=values[1], name=name)


def _single(operator: Any) -> Callable[..., Any]:
    return lambda values, _, name: operator(x=values[0], name=name)


def _linear(values: Values, attributes: dict[str, Any], name: str) -> Any:
    assert attributes == {"transB": 1}
    return mb.linear(x=values[0], weight=values[1], bias=values[2] if len(values) > 2 else None, name=name)


LOWERED: dict[str, Callable[..., Any]] = {
    "Add": _pairwise(mb.add),
    "Mul": _pairwise(mb.mul),
    "Div": _pairwise(mb.real_div),
    "Max": _pairwise(mb.maximum),
    "MatMul": _pairwise(mb.matmul),
    "Sqrt": _single(mb.sqrt),
    "Sigmoid": _single(mb.sigmoid),
    "Softmax": lambda values, attributes, name: mb.softmax(x=values[0], axis=attributes["axis"], name=name),
    "ReduceMean": _reduced(mb.reduce_mean),
    "ReduceMax": _reduced(mb.reduce_max),
    "Gemm": _linear,
    "Transpose": lambda values, attributes, name: mb.transpose(x=values[0], perm=attributes["perm"], name=name),
    "Reshape": lambda values, _, name: mb.reshape(x=values[0], shape=values[1].astype(np.int32), name=name),
    "Concat": lambda values, attributes, name: mb.concat(values=values, axis=attributes["axis"], name=name),
    "Split": lambda values, attributes, name: mb.split(
        x=values[0], split_sizes=values[1].astype(np.int32), axis=attributes["axis"], name=name
    ),
}


def lower(model: ModelProto) -> Program:
    """The program of a static graph. Raises ValueError where CoreML's types or shapes forbid an operator."""
    graph = model.graph
    inputs = {
        value.name: mb.placeholder(
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
            FLOAT_TYPES[value.type.tensor_type.elem_type],
        )
        for value in graph.input
    }
    with Function(inputs, opset_version=TARGET) as function:
        values: dict[str, Any] = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        values |= function.inputs
        for node in graph.node:
            _lower_node(node, values)
        function.set_outputs([values[value.name] for value in graph.output])
    program = Program()
    program.add_function("main", function)
    return program


def _lower_node(node: NodeProto, values: dict[str, Any]) -> None:
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    result = LOWERED[node.op_type]([values[name] for name in node.input], attributes, node.output[0])
    results = result if isinstance(result, (list, tuple)) else [result]
    values |= dict(zip(node.output, results, strict=True))


def convert(program: Program) -> Any:
    """The program as CoreML's specification, with no pass of coremltools over it."""
    return ct.convert(
        program,
        convert_to="mlprogram",
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
        minimum_deployment_target=TARGET,
    )


def operator_counts(program: Program) -> Counter[str]:
    """How often every operator but `const` is there."""
    return Counter(op.op_type for op in program.functions["main"].operations if op.op_type != "const")
