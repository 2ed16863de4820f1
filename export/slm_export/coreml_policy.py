"""What this project forbids in its CoreML graphs although the provider takes it, and what the manifest promises."""

import re
from collections.abc import Iterator

from onnx import NodeProto

from slm_export.coreml_rules import Policy, Rules
from slm_export.graph_facts import DYNAMIC, GraphFacts, attributes_of, is_external, is_finite
from slm_runtime.static_graph import StaticGraphSpec


def node_findings(node: NodeProto, facts: GraphFacts, rules: Rules) -> Iterator[str]:
    """What is wrong with one node."""
    policy, rule = rules.policy, rules.operators.get(node.op_type)
    if node.op_type not in policy.operators:
        yield "not among the operators that our graphs are made of"
    if node.domain not in {"", "ai.onnx"}:
        yield f"of domain {node.domain}"
    if rule and rule.forbidden:
        yield f"forbidden: {rule.why}"
    for name, value in (rule.advised if rule else {}).items():
        if attributes_of(node).get(name, 0) != value:
            yield f"{name} must be {value:g}: {rule.why if rule else ''}"
    if node.op_type == "Split" and (len(node.input) < 2 or not node.input[1]):
        yield "its sizes must be given"
    for name in node.output:
        dims = facts.dims(name)
        if dims is None or DYNAMIC in dims:
            yield f"the shape of {name} is not known"
        else:
            yield from _size_findings(name, dims, policy)


def graph_findings(facts: GraphFacts, rules: Rules) -> Iterator[str]:
    """What is wrong with inputs, outputs, constants and metadata."""
    model, policy = facts.model, rules.policy
    used = {name for node in model.graph.node for name in node.input}
    for value in (*model.graph.input, *model.graph.output):
        if (found := facts.values[value.name].data_type) not in policy.graph_values:
            yield f"{value.name}: {found} is no float"
        if not re.fullmatch(policy.value_name, value.name):
            yield f"{value.name}: no plain name"
    for value in model.graph.input:
        if value.name not in used:
            yield f"{value.name}: no node reads it"
        yield from _size_findings(value.name, facts.dims(value.name) or (), policy)
    yield from _constant_findings(facts, policy)
    key = _cache_key(facts)
    if not re.fullmatch(policy.cache_key, key):
        yield f"{StaticGraphSpec.cache_key_property} is {key!r}, which tells no graph from another"
    if (facts.opset, model.ir_version) != (policy.opset, policy.ir_version):
        yield (
            f"opset {facts.opset}, IR version {model.ir_version}; "
            f"all our graphs have {policy.opset} and {policy.ir_version}"
        )


def contract_findings(facts: GraphFacts, spec: StaticGraphSpec) -> Iterator[str]:
    """Where the graph is not the one that the manifest describes."""
    graph = facts.model.graph
    if (key := _cache_key(facts)) != spec.cache_key:
        yield f"{StaticGraphSpec.cache_key_property} is {key!r}, the manifest says {spec.cache_key!r}"
    for kind, found, names in (
        ("inputs", graph.input, spec.input_names()),
        ("outputs", graph.output, spec.output_names()),
    ):
        if [value.name for value in found] != names:
            yield f"its {kind} are not those of the manifest"
    wanted = "FLOAT16" if spec.precision == "fp16" else "FLOAT"
    for name, dims in spec.shapes().items():
        value = facts.values.get(name)
        if value and (value.dims, value.data_type) != (dims, wanted):
            yield f"{name}: {value.data_type} {value.dims}, the manifest says {wanted} {dims}"


def _cache_key(facts: GraphFacts) -> str:
    properties = {entry.key: entry.value for entry in facts.model.metadata_props}
    return properties.get(StaticGraphSpec.cache_key_property, "")


def _constant_findings(facts: GraphFacts, policy: Policy) -> Iterator[str]:
    total = 0
    for tensor in facts.model.graph.initializer:
        total += tensor.ByteSize()
        if tensor.name not in facts.constants:
            yield f"{tensor.name}: an input with a default is not a constant"
        if not tensor.dims:
            yield f"{tensor.name}: a constant without axes"
        if is_external(tensor):
            yield f"{tensor.name}: lies outside of the file"
        elif not is_finite(tensor):
            yield f"{tensor.name}: holds what is not a number"
        yield from _size_findings(tensor.name, tuple(tensor.dims), policy)
    if total > policy.max_constant_bytes:
        yield f"{total:,} bytes of constants, at most {policy.max_constant_bytes:,} fit one file"


def _size_findings(name: str, dims: tuple[int, ...], policy: Policy) -> Iterator[str]:
    if len(dims) > policy.max_rank:
        yield f"{name}: {len(dims)} axes, at most {policy.max_rank} are allowed"
    if max(dims, default=0) > policy.max_dim:
        yield f"{name}: an axis of {max(dims)}, at most {policy.max_dim} are allowed"
