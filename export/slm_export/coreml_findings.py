"""A static graph against all rules: what the provider refuses, in how many pieces it cuts, what we forbid."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto
from onnx.shape_inference import InferenceError

from slm_export.coreml_partitions import count_partitions
from slm_export.coreml_policy import contract_findings, graph_findings, node_findings
from slm_export.coreml_refusals import refusals, refused_values
from slm_export.coreml_rules import Rules, load_rules
from slm_export.graph_facts import GraphFacts
from slm_runtime.static_graph import StaticGraphSpec


@dataclass(frozen=True)
class CheckedGraph:
    """What was found: refusals and number of partitions by onnxruntime version, and the project's own findings."""

    num_nodes: int
    refused: dict[str, list[str]]
    partitions: dict[str, int]
    findings: list[str]

    @property
    def passed(self) -> bool:
        return not self.findings and not any(self.refused.values()) and set(self.partitions.values()) <= {1}

    def lines(self) -> list[str]:
        """What was found, the sums first."""
        sums = [f"{v}: {len(self.refused[v])} refused, {n} partition(s)" for v, n in self.partitions.items()]
        lines = [f"{self.num_nodes} nodes; {'; '.join(sums)}; {len(self.findings)} policy findings"]
        lines += [f"  onnxruntime {version}: {line}" for version, some in self.refused.items() for line in some]
        return lines + [f"  policy: {line}" for line in self.findings]


def check_graph(model: ModelProto, versions: Sequence[str], spec: StaticGraphSpec | None = None) -> CheckedGraph:
    """Every node of `model` against the rules of every version, and against `spec` where there is one."""
    rules = load_rules()
    try:
        facts = GraphFacts.of_model(model)
    except InferenceError as error:
        return CheckedGraph(len(model.graph.node), {}, {}, [f"the graph contradicts itself: {str(error)[:200]}"])
    refused, partitions = {}, {}
    for version in versions:
        refused[version], partitions[version] = _check_version(facts, rules, version)
    findings = [f"{_name(node)}: {line}" for node in model.graph.node for line in node_findings(node, facts, rules)]
    findings += graph_findings(facts, rules)
    findings += contract_findings(facts, spec) if spec else []
    return CheckedGraph(len(model.graph.node), refused, partitions, findings)


def _check_version(facts: GraphFacts, rules: Rules, version: str) -> tuple[list[str], int]:
    """What this version refuses, and the number of its partitions."""
    graph = facts.model.graph
    reasons = {node.output[0]: refusals(node, facts, rules, version) for node in graph.node}
    lines = [f"{_name(node)}: {line}" for node in graph.node for line in reasons[node.output[0]]]
    lines += refused_values(facts, rules)
    return lines, count_partitions(graph, lambda node: not reasons[node.output[0]])


def _name(node: NodeProto) -> str:
    return f"{node.name or node.output[0]} ({node.op_type})"
