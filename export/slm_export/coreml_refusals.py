"""Why onnxruntime's CoreML provider would leave a node to the CPU. Nothing found means that it takes the node."""

from collections.abc import Callable, Iterator

from onnx import NodeProto, TensorProto

from slm_export.coreml_rules import OperatorRule, Rules, as_version
from slm_export.graph_facts import DYNAMIC, GraphFacts, attributes_of


def refusals(node: NodeProto, facts: GraphFacts, rules: Rules, onnxruntime: str) -> list[str]:
    """One reason per broken rule, for one version of onnxruntime."""
    rule = rules.operator(node.op_type, onnxruntime)
    if rule is None:
        return ["the provider has no such operator"]
    # Later rules read shapes, so a node without them has only this to say.
    reasons = list(_shapes(node, facts, rules))
    if not reasons:
        reasons += _versions(node, facts, rule, rules.newest_operator_version(onnxruntime))
        reasons += _inputs(node, facts, rule, rule.first_input or rules.first_input)
        reasons += _attributes(node, rule)
        reasons += SPECIAL.get(node.op_type, _nothing)(node, facts, onnxruntime)
    return reasons


def refused_values(facts: GraphFacts, rules: Rules) -> list[str]:
    """What is wrong with the graph's own inputs and outputs."""
    graph = facts.model.graph
    return [
        f"{value.name}: {found} is no type of a graph input or output"
        for value in (*graph.input, *graph.output)
        if (found := facts.values[value.name].data_type) not in rules.graph_values
    ]


def _shapes(node: NodeProto, facts: GraphFacts, rules: Rules) -> Iterator[str]:
    for name in filter(None, node.input):
        dims = facts.dims(name)
        if dims is None:
            yield f"the shape of {name} is unknown"
        elif DYNAMIC in dims:
            yield f"{name} has no fixed shape"
        elif 0 in dims:
            yield f"{name} has an axis of size 0"
        elif len(dims) > rules.max_input_rank:
            yield f"{name} has {len(dims)} axes, at most {rules.max_input_rank} are taken"


def _versions(node: NodeProto, facts: GraphFacts, rule: OperatorRule, newest: int) -> Iterator[str]:
    since = facts.since_version(node)
    if not rule.min_since <= since <= newest:
        yield f"operator version {since} is not within {rule.min_since} and {newest}"


def _inputs(node: NodeProto, facts: GraphFacts, rule: OperatorRule, first_input: tuple[str, ...]) -> Iterator[str]:
    given = dict(enumerate(node.input))
    types = {i: facts.values[name].data_type for i, name in given.items() if name}
    if len(types) < rule.min_inputs:
        yield f"{len(types)} inputs, at least {rule.min_inputs} are needed"
    if 0 in types and types[0] not in first_input:
        yield f"its first input is {types[0]}, only {', '.join(first_input)} are taken"
    for i in rule.constants:
        if i in types and given[i] not in facts.constants:
            yield f"input {given[i]} is not a constant"
    if len({types[i] for i in rule.same_type if i in types}) > 1:
        yield "its inputs are of several types"


def _attributes(node: NodeProto, rule: OperatorRule) -> Iterator[str]:
    found = attributes_of(node)
    for name, value in rule.attributes.items():
        if found.get(name, value) != value:
            yield f"{name} is {found[name]}, only {value:g} is taken"
    if rule.max_outputs is not None and len(node.output) > rule.max_outputs:
        yield f"{len(node.output)} outputs, at most {rule.max_outputs} are taken"


def _known_dims(facts: GraphFacts, name: str) -> tuple[int, ...]:
    dims = facts.dims(name)
    assert dims is not None, "checked before"
    return dims


def _gemm(node: NodeProto, facts: GraphFacts, _: str) -> Iterator[str]:
    if len(node.input) < 3 or not node.input[2]:
        return
    width = _known_dims(facts, node.input[1])[0 if attributes_of(node).get("transB") else 1]
    if (bias := _known_dims(facts, node.input[2])) not in ((), (1,), (width,), (1, width)):
        yield f"a bias {list(bias)} is not spread over {width} columns"


def _matmul(node: NodeProto, facts: GraphFacts, _: str) -> Iterator[str]:
    ranks = [len(_known_dims(facts, name)) for name in node.input]
    if 1 in ranks and set(ranks) != {1}:
        yield "a vector times something of more axes"


def _reshape(node: NodeProto, facts: GraphFacts, _: str) -> Iterator[str]:
    if not _known_dims(facts, node.input[0]):
        yield "it reshapes a scalar"
    shape = facts.integers(node.input[1])
    if shape is not None and not 1 <= len(shape) <= 5:
        yield f"the new shape {shape} has not 1 to 5 axes"
    if shape is not None and 0 in shape and attributes_of(node).get("allowzero"):
        yield "the new shape has an axis of size 0"


def _split(node: NodeProto, facts: GraphFacts, onnxruntime: str) -> Iterator[str]:
    axis = attributes_of(node).get("axis", 0)
    size = _known_dims(facts, node.input[0])[axis]
    if len(node.input) < 2 or not node.input[1]:
        if as_version(onnxruntime) < (1, 32):
            yield "it has no sizes"
        return
    sizes = facts.integers(node.input[1])
    if sizes is not None and (len(sizes) < 2 or 0 in sizes or sum(sizes) != size):
        yield f"sizes {sizes} do not cut {size} into two or more parts"


def _slice(node: NodeProto, facts: GraphFacts, _: str) -> Iterator[str]:
    if any(0 in (facts.dims(name) or ()) for name in node.output):
        yield "nothing is left"


def _cast(node: NodeProto, facts: GraphFacts, _: str) -> Iterator[str]:
    if node.input[0] not in facts.producers:
        yield "it casts a graph input or a constant"
    wanted = TensorProto.DataType.Name(attributes_of(node)["to"])
    if wanted not in {"FLOAT", "INT32", "INT64", "FLOAT16"}:
        yield f"it casts to {wanted}"


def _gather(node: NodeProto, facts: GraphFacts, onnxruntime: str) -> Iterator[str]:
    data, indices = (len(_known_dims(facts, name)) for name in node.input)
    if not indices and as_version(onnxruntime) < (1, 32):
        yield "its index is a scalar"
    if data + indices - 1 > 5:
        yield f"its result has {data + indices - 1} axes, at most 5 are taken"


def _unsqueeze(node: NodeProto, facts: GraphFacts, _: str) -> Iterator[str]:
    if any(len(facts.dims(name) or ()) > 5 for name in node.output):
        yield "its result has more than 5 axes"


def _nothing(_node: NodeProto, _facts: GraphFacts, _onnxruntime: str) -> Iterator[str]:
    return iter(())


SPECIAL: dict[str, Callable[[NodeProto, GraphFacts, str], Iterator[str]]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Split": _split,
    "Slice": _slice,
    "Cast": _cast,
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
}
