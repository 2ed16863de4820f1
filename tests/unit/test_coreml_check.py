"""Every way in which a graph could leave CoreML, or break our own rules, is found; the exported graphs have none."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from tiny_models import make_model

from slm_export.coreml_export import static_spec, weights_digest, write_static_graph
from slm_export.coreml_findings import check_graph
from slm_export.coreml_partitions import count_partitions
from slm_export.decoder import PrefillStep
from slm_runtime.static_graph import StaticGraphSpec

OLD, NEW = "1.24.4", "1.32.0"
VERSIONS = (OLD, NEW)
FAMILIES = ("qwen2", "qwen3", "llama")
PRECISIONS = ("fp32", "fp16")
# Per layer and, for qwen3, per head norm; counted by hand from section 5 of the design, not from the builder.
LAYER = Counter(
    {"Gemm": 7, "Reshape": 8, "Transpose": 5, "Split": 2, "Concat": 4, "MatMul": 2, "Softmax": 1, "Sigmoid": 1}
) + Counter(Mul=6, Add=5)
NORM = {
    "fp32": Counter(Mul=1, ReduceMean=1, Add=1, Sqrt=1, Div=1),
    "fp16": Counter(Mul=4, Max=2, ReduceMax=1, Div=3, ReduceMean=1, Add=1, Sqrt=1),
}
LAYERS = 3


def export(folder: Path, family: str, precision: str) -> tuple[ModelProto, StaticGraphSpec]:
    step = PrefillStep(make_model(family, 300))
    spec = write_static_graph(step, static_spec(step, precision, 16, 64), weights_digest(step), folder)
    return onnx.load(folder / spec.file), spec


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelProto, StaticGraphSpec]:
    return export(tmp_path_factory.mktemp("qwen2"), "qwen2", "fp32")


@pytest.fixture
def model(qwen2: tuple[ModelProto, StaticGraphSpec]) -> ModelProto:
    """A copy to damage."""
    copy = ModelProto()
    copy.CopyFrom(qwen2[0])
    return copy


def find(model: ModelProto, op_type: str) -> NodeProto:
    return next(node for node in model.graph.node if node.op_type == op_type)


def constant(model: ModelProto, name: str, values: object) -> str:
    """A constant in the place of one that has the same name."""
    kept = [tensor for tensor in model.graph.initializer if tensor.name != name]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, numpy_helper.from_array(np.array(values), name)])
    return name


def insert(model: ModelProto, op_type: str, inputs: list[str], **attributes: object) -> NodeProto:
    """A node behind all others whose output nothing reads."""
    node = helper.make_node(op_type, inputs, ["extra"], name="node_extra", **attributes)
    model.graph.node.append(node)
    return node


def replace_input(model: ModelProto, name: str, dims: list[int | str], data_type: int = TensorProto.FLOAT) -> None:
    for i, value in enumerate(model.graph.input):
        if value.name == name:
            model.graph.input[i].CopyFrom(helper.make_tensor_value_info(name, data_type, dims))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_exported_graphs_pass_and_consist_of_the_known_operators(tmp_path: Path, family: str, precision: str) -> None:
    model, spec = export(tmp_path, family, precision)
    onnx.checker.check_model(model, full_check=True)
    checked = check_graph(model, VERSIONS, spec)
    assert checked.passed, checked.lines()
    assert checked.partitions == {OLD: 1, NEW: 1}
    expected = Counter[str]()
    for _ in range(LAYERS):
        expected += LAYER + NORM[precision] + NORM[precision]
        if family == "qwen3":
            expected += NORM[precision] + NORM[precision] + Counter(Mul=2)
    assert Counter(node.op_type for node in model.graph.node) == expected


def negate(model: ModelProto) -> None:
    insert(model, "Neg", ["layer_0_out"])


def move_where(model: ModelProto) -> None:
    constant(model, "yes", [True] * 64)
    insert(model, "Where", ["yes", "layer_0_out", "layer_0_out"])


def scale_product(model: ModelProto) -> None:
    find(model, "Gemm").attribute.append(helper.make_attribute("alpha", 0.5))


def override_weight(model: ModelProto) -> None:
    name = find(model, "Gemm").input[1]
    dims = next(tensor.dims for tensor in model.graph.initializer if tensor.name == name)
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))


def two_dimensional_bias(model: ModelProto) -> None:
    node = find(model, "Gemm")
    rows, columns = 16, next(t.dims[0] for t in model.graph.initializer if t.name == node.input[1])
    node.input[2] = constant(model, "square", np.zeros((rows, columns), np.float32))


def symbolic_rows(model: ModelProto) -> None:
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("layer_0_query_flat", TensorProto.FLOAT, None))
    keep = list(model.graph.node)[:6]
    del model.graph.node[:]
    model.graph.node.extend(keep)
    replace_input(model, "hidden", ["S", 64])


def empty_past(model: ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("nothing", TensorProto.FLOAT, [2, 0, 8]))
    insert(model, "Concat", ["nothing", "past_key_0"], axis=1)


def six_axes(model: ModelProto) -> None:
    insert(model, "Reshape", ["layer_0_out", constant(model, "six", [1, 1, 1, 1, 16, 64])])


def computed_shape(model: ModelProto) -> None:
    insert(model, "Shape", ["layer_0_out"])
    model.graph.node.append(helper.make_node("Reshape", ["layer_0_out", "extra"], ["more"], name="node_more"))


def cast_input(model: ModelProto) -> None:
    insert(model, "Cast", ["cos"], to=TensorProto.FLOAT16)


def cast_to_double(model: ModelProto) -> None:
    insert(model, "Cast", ["layer_0_out"], to=TensorProto.DOUBLE)


def split_without_sizes(model: ModelProto) -> None:
    node = helper.make_node("Split", ["layer_0_out"], ["left", "right"], name="node_extra", axis=1)
    model.graph.node.append(node)


def gather_one(model: ModelProto) -> None:
    insert(model, "Gather", ["layer_0_out", constant(model, "first", np.int64(0))])


def integer_product(model: ModelProto) -> None:
    constant(model, "counts", np.ones((4, 4), np.int32))
    insert(model, "MatMul", ["counts", "counts"])


def integer_graph_input(model: ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("flags", TensorProto.BOOL, [4]))


def old_softmax(model: ModelProto) -> None:
    model.opset_import[0].version = 12


def computed_scale(model: ModelProto) -> None:
    insert(model, "LayerNormalization", ["layer_0_out", "layer_1_attention_norm"], axis=0)


def lonely_concat(model: ModelProto) -> None:
    insert(model, "Concat", ["layer_0_out"], axis=0)


def vector_times_matrix(model: ModelProto) -> None:
    insert(model, "MatMul", [constant(model, "line", np.ones(16, np.float32)), "layer_0_out"])


REFUSED: list[tuple[Callable[[ModelProto], None], str]] = [
    (negate, "no such operator"),
    (scale_product, "alpha is 0.5"),
    (override_weight, "is not a constant"),
    (two_dimensional_bias, "is not spread"),
    (symbolic_rows, "has no fixed shape"),
    (empty_past, "an axis of size 0"),
    (computed_shape, "is not a constant"),
    (six_axes, "has not 1 to 5 axes"),
    (cast_input, "casts a graph input"),
    (cast_to_double, "casts to DOUBLE"),
    (integer_product, "INT32"),
    (integer_graph_input, "BOOL is no type"),
    (old_softmax, "operator version"),
    (computed_scale, "is not a constant"),
    (lonely_concat, "at least 2 are needed"),
    (vector_times_matrix, "a vector times"),
]
REFUSED_BY_OLD_ONLY: list[tuple[Callable[[ModelProto], None], str]] = [
    (move_where, "no such operator"),
    (split_without_sizes, "it has no sizes"),
    (gather_one, "its index is a scalar"),
]


@pytest.mark.parametrize(("damage", "reason"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_the_provider_refuses_is_found_for_both_versions(model: ModelProto, damage, reason: str) -> None:
    damage(model)
    checked = check_graph(model, VERSIONS)
    assert not checked.passed
    for version in VERSIONS:
        assert any(reason in line for line in checked.refused[version]), checked.lines()


@pytest.mark.parametrize(("damage", "reason"), REFUSED_BY_OLD_ONLY, ids=lambda value: getattr(value, "__name__", ""))
def test_what_only_the_older_version_refuses_is_found_there(model: ModelProto, damage, reason: str) -> None:
    damage(model)
    checked = check_graph(model, VERSIONS)
    assert any(reason in line for line in checked.refused[OLD]), checked.lines()
    assert not checked.refused[NEW]
    assert checked.findings, "and it is against our own rules"


def untransposed_weight(model: ModelProto) -> None:
    find(model, "Gemm").attribute[0].i = 0
    name = find(model, "Gemm").input[1]
    weight = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name)
    constant(model, name, weight.T.copy())


def reciprocal(model: ModelProto) -> None:
    insert(model, "Reciprocal", ["layer_0_out"])


def external_weight(model: ModelProto) -> None:
    tensor = model.graph.initializer[-1]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.data")
    tensor.ClearField("raw_data")


def scalar_constant(model: ModelProto) -> None:
    insert(model, "Mul", ["layer_0_out", constant(model, "two", np.float32(2))])


def five_axes(model: ModelProto) -> None:
    insert(model, "Reshape", ["layer_0_out", constant(model, "five", [1, 1, 1, 16, 64])])


def long_axis(model: ModelProto) -> None:
    constant(model, "vocabulary", np.zeros((20_000, 64), np.float32))
    insert(model, "Gemm", ["layer_0_out", "vocabulary"], transB=1)


def dotted_name(model: ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("past.0.key", TensorProto.FLOAT, [1]))


def no_cache_key(model: ModelProto) -> None:
    del model.metadata_props[:]


def odd_cache_key(model: ModelProto) -> None:
    model.metadata_props[0].value = "no-dashes-allowed"


def not_a_number(model: ModelProto) -> None:
    name = find(model, "Gemm").input[1]
    weight = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name).copy()
    weight[0, 0] = np.nan
    constant(model, name, weight)


def other_opset(model: ModelProto) -> None:
    model.ir_version = 10


def wrong_shapes(model: ModelProto) -> None:
    replace_input(model, "mask", [16, 81])


AGAINST_POLICY: list[tuple[Callable[[ModelProto], None], str]] = [
    (untransposed_weight, "transB must be 1"),
    (reciprocal, "1e-4"),
    (external_weight, "outside of the file"),
    (scalar_constant, "a constant without axes"),
    (five_axes, "5 axes"),
    (long_axis, "an axis of 20000"),
    (dotted_name, "no plain name"),
    (dotted_name, "no node reads it"),
    (no_cache_key, "COREML_CACHE_KEY is ''"),
    (odd_cache_key, "no-dashes-allowed"),
    (not_a_number, "not a number"),
    (other_opset, "IR version 10"),
    (wrong_shapes, "contradicts itself"),
]


@pytest.mark.parametrize(("damage", "reason"), AGAINST_POLICY, ids=lambda value: getattr(value, "__name__", ""))
def test_what_our_own_rules_forbid_is_found(model: ModelProto, damage, reason: str) -> None:
    damage(model)
    checked = check_graph(model, VERSIONS)
    assert not checked.passed
    assert any(reason in line for line in checked.findings), checked.lines()


def test_a_graph_that_is_not_the_manifests_is_found(qwen2: tuple[ModelProto, StaticGraphSpec], tmp_path: Path) -> None:
    other, _ = export(tmp_path, "llama", "fp16")
    findings = check_graph(other, VERSIONS, qwen2[1]).findings
    assert any("the manifest says" in line and "COREML_CACHE_KEY" in line for line in findings)
    assert any("hidden: FLOAT16" in line for line in findings)


def test_a_node_that_is_refused_in_the_middle_cuts_the_graph_in_two(model: ModelProto) -> None:
    """The first layer's states go through an operator that stays on the CPU."""
    index = next(i for i, node in enumerate(model.graph.node) if node.output[0] == "layer_0_out")
    for node in model.graph.node[index + 1 :]:
        node.input[:] = ["negated" if name == "layer_0_out" else name for name in node.input]
    model.graph.node.insert(index + 1, helper.make_node("Abs", ["layer_0_out"], ["negated"], name="node_abs"))
    assert check_graph(model, VERSIONS).partitions == {OLD: 2, NEW: 2}


def chain(*taken: bool) -> tuple[onnx.GraphProto, Callable[[NodeProto], bool]]:
    nodes = [helper.make_node("Add", [f"x{i}", f"x{i}"], [f"x{i + 1}"]) for i in range(len(taken))]
    by_name = {f"x{i + 1}": value for i, value in enumerate(taken)}
    return helper.make_graph(nodes, "chain", [], []), lambda node: by_name[node.output[0]]


@pytest.mark.parametrize(
    ("taken", "partitions"),
    [
        ((True, True, True), 1),
        ((False, True, True), 1),
        ((True, True, False), 1),
        ((True, False, True), 2),
        ((True, False, False, True, False, True), 3),
        ((False, False), 0),
    ],
)
def test_partitions_of_a_chain(taken: tuple[bool, ...], partitions: int) -> None:
    assert count_partitions(*chain(*taken)) == partitions


def test_branches_around_a_refused_node_are_two_partitions_only_where_they_meet_again() -> None:
    """a -> refused -> c and a -> b: b belongs to the first group; with b -> c, c is a second one."""

    def count(last_reads_b: bool) -> int:
        nodes = [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Neg", ["a"], ["refused"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Add", ["refused", "b" if last_reads_b else "refused"], ["c"]),
        ]
        graph = helper.make_graph(nodes if last_reads_b else nodes[:3], "fork", [], [])
        return count_partitions(graph, lambda node: node.op_type != "Neg")

    assert (count(last_reads_b=False), count(last_reads_b=True)) == (1, 2)
