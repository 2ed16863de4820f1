"""CoreML's own types and shapes accept the static graphs, one operator for one operator."""

from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tiny_models import make_model

from slm_export.coreml_export import static_spec, weights_digest, write_static_graph
from slm_export.decoder import PrefillStep

pytest.importorskip("coremltools", reason="coremltools has no package for this system")

from mil_program import FLOAT_TYPES, convert, lower, operator_counts

NAMES = {
    "Add": "add",
    "Mul": "mul",
    "Div": "real_div",
    "Max": "maximum",
    "MatMul": "matmul",
    "Sqrt": "sqrt",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "Gemm": "linear",
    "Transpose": "transpose",
    "Reshape": "reshape",
    "Concat": "concat",
    "Split": "split",
}


def graph(folder: Path, family: str, precision: str) -> onnx.ModelProto:
    step = PrefillStep(make_model(family, 300))
    spec = write_static_graph(step, static_spec(step, precision, 16, 64), weights_digest(step), folder)
    return onnx.load(folder / spec.file)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_operator_becomes_one_of_coremls_with_the_same_result(
    tmp_path: Path, family: str, precision: str
) -> None:
    model = graph(tmp_path, family, precision)
    program = lower(model)
    assert operator_counts(program) == Counter(NAMES[node.op_type] for node in model.graph.node)
    outputs = {output.name: output for output in program.functions["main"].outputs}
    for value in model.graph.output:
        tensor = value.type.tensor_type
        assert outputs[value.name].shape == tuple(dim.dim_value for dim in tensor.shape.dim)
        assert outputs[value.name].dtype == FLOAT_TYPES[tensor.elem_type]
    described = convert(program).get_spec().description
    assert [entry.name for entry in described.input] == [value.name for value in model.graph.input]
    assert [entry.name for entry in described.output] == [value.name for value in model.graph.output]


def test_a_weight_of_another_type_is_noticed(tmp_path: Path) -> None:
    model = graph(tmp_path, "qwen2", "fp16")
    weight = next(t for t in model.graph.initializer if t.name == "layer_0_gate_weight")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype("float32"), weight.name))
    with pytest.raises(ValueError, match="layer_0_gate"):
        lower(model)


def test_a_product_whose_shapes_do_not_fit_is_noticed(tmp_path: Path) -> None:
    model = graph(tmp_path, "qwen2", "fp32")
    mask = next(value for value in model.graph.input if value.name == "mask")
    assert mask.type.tensor_type.elem_type == TensorProto.FLOAT
    mask.type.tensor_type.shape.dim[1].dim_value += 1
    with pytest.raises(ValueError, match="Incompatible dim"):
        lower(model)
