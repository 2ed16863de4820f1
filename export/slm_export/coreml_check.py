"""Would CoreML run every node of a bundle's static graphs? `python -m slm_export.coreml_check BUNDLE`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from onnx import ModelProto
from onnx.shape_inference import InferenceError

from slm_export.coreml_partitions import count_partitions
from slm_export.coreml_policy import contract_findings, graph_findings, node_findings
from slm_export.coreml_refusals import refusals, refused_values
from slm_export.coreml_rules import Rules, load_rules
from slm_export.graph_facts import GraphFacts, load_graph
from slm_runtime.bundle import find_bundle
from slm_runtime.command import run_command
from slm_runtime.errors import InputError
from slm_runtime.manifest import read_manifest
from slm_runtime.static_graph import StaticGraphSpec

# The oldest and the newest version whose wheels the rules were read out of.
VERSIONS = "1.24.4,1.32.0"
PASSED, FAILED = 0, 3


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


def _name(node: object) -> str:
    return f"{getattr(node, 'name', '') or getattr(node, 'output', ['?'])[0]} ({getattr(node, 'op_type', '?')})"


@click.command("coreml_check")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--onnxruntime", default=VERSIONS, show_default=True, help="Versions to check for, with commas.")
def coreml_check(bundle: Path, onnxruntime: str) -> int:
    """Check every node of the CoreML graphs in BUNDLE against the provider's rules and ours. Exit code 0 or 3."""
    versions = [version.strip() for version in onnxruntime.split(",")]
    for version in versions:
        load_rules().require_known(version)
    folder = find_bundle(bundle)
    specs = read_manifest(folder).coreml
    if not specs:
        raise InputError(f"{folder}: holds no CoreML graph; export it with --profile coreml")
    passed = True
    for spec in specs:
        checked = check_graph(load_graph(folder / spec.file), versions, spec)
        passed &= checked.passed
        click.echo(f"{spec.file}: " + "\n".join(checked.lines()))
    click.echo("every node runs on CoreML by the rules" if passed else "not every graph runs on CoreML alone")
    return PASSED if passed else FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(coreml_check, argv, env_prefix="SLM_COREML_CHECK")


if __name__ == "__main__":
    sys.exit(main())
