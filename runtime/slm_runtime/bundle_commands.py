"""`slm-run verify` and `slm-run inspect`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from slm_runtime.bundle import find_bundle
from slm_runtime.classifier import Classifier
from slm_runtime.coreml.admission import describe_admissions
from slm_runtime.coreml.choice import check_graphs, check_provider
from slm_runtime.coreml.session import StaticDecoderSession
from slm_runtime.coreml.verdict import TOLERANCE_NATS, agrees
from slm_runtime.errors import ParityError
from slm_runtime.golden import GoldenSet, check_tokens, compare, fitting, passes, read_golden
from slm_runtime.integrity import check_files
from slm_runtime.machine import describe_machine, versions
from slm_runtime.manifest import GraphPrecision, Int8Record, Manifest, MarginBound, ParityRecord, read_manifest
from slm_runtime.precision import Precision

# A golden ticket may lie beyond the bound that was measured on others, but not far.
INT8_SLACK = 2.0


def verify_bundle(bundle: str, *, provider: str, threads: int | None) -> int:
    """Hash every file, load the graph, ask the golden tickets; 0 when this machine agrees with the reference.

    Raises:
        ArtifactError: the bundle is damaged or not for this version.
        ParityError: an answer differs.
    """
    check_provider(provider)
    folder = find_bundle(bundle)
    manifest = read_manifest(folder)
    check_graphs(provider, folder, manifest)
    check_files(folder, manifest, always_hash=True)
    click.echo(f"files: {len(manifest.files)} of {len(manifest.files)} digests match")
    exact: Precision = "int8" if manifest.graph("fp32") is None else "fp32"
    classifier = Classifier.load(
        folder, provider=provider, threads=threads, precision=exact, say=click.echo, retry=True
    )
    machine = describe_machine(classifier.num_threads)
    click.echo(f"machine: {machine['cpu']}, {machine['threads']} threads, {classifier.decoder.provider}")
    click.echo("versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()))
    for line in describe_admissions(classifier.decoders.admissions):
        click.echo(line)
    sets = _golden_sets(classifier)
    for golden in sets:
        check_tokens(classifier, golden)
    click.echo(
        f"tokenizer: {sum(len(golden.texts) for golden in sets)} prompts have the tokens that they had at export"
    )
    records = [_compare(classifier, golden) for golden in sets] if exact == "fp32" else []
    for record in records:
        click.echo(f"golden: {describe_parity(record)}")
    for graph in classifier.decoder.describe():
        click.echo(f"calls: {graph['calls']} of {graph['graph']}, {graph['tokens']} tokens after {graph['past']}")
    if classifier.decoders.admissions:
        click.echo("please report these lines with the model of your Mac, whatever they say: no Mac was at hand here")
    if failed := [record for record in records if not _passes(classifier, record)]:
        raise ParityError(
            f"{folder}: {describe_parity(failed[0])}; this machine does not reproduce the reference. "
            "Try another onnxruntime version, or --provider cpu"
        )
    if manifest.int8 is not None:
        if exact == "fp32":
            classifier = Classifier.load(folder, threads=threads, precision="int8")
        _verify_int8(folder, classifier, manifest.int8, sets)
    click.echo("verified")
    return 0


def _verify_int8(folder: Path, classifier: Classifier, int8: Int8Record, sets: Sequence[GoldenSet]) -> None:
    """Ask the int8 decoder the golden tickets of every rule that has a bound.

    Raises:
        ParityError: it is further from the reference than the export's bound can explain.
    """
    for golden in sets:
        bound = int8.bound_for(golden.scoring)
        if bound is None:
            continue
        record = compare(classifier, golden, INT8_SLACK * bound.bound)
        click.echo(f"int8: {describe_parity(record)}")
        if record.max_logprob_diff > record.tolerance:
            raise ParityError(
                f"{folder}: int8: {describe_parity(record)}; this machine's integer products are not those of the "
                "export. Use --precision fp32, and report the machine that `slm-run verify` shows"
            )


def _golden_sets(classifier: Classifier) -> list[GoldenSet]:
    """The golden tickets that this decoder takes; says how many it does not."""
    sets = read_golden(classifier.bundle.folder)
    fits = [fitting(classifier, golden) for golden in sets]
    if left_out := sum(len(all_.texts) - len(some.texts) for all_, some in zip(sets, fits, strict=True)):
        click.echo(f"golden: {left_out} tickets are too long for the CoreML graphs and are left out")
    return [golden for golden in fits if golden.texts]


def _compare(classifier: Classifier, golden: GoldenSet) -> ParityRecord:
    """As `golden.compare`, with the tolerance of CoreML where it answers."""
    record, decoder = compare(classifier, golden), classifier.decoder
    if isinstance(decoder, StaticDecoderSession):
        return replace(record, tolerance=TOLERANCE_NATS[decoder.precision])
    return record


def _passes(classifier: Classifier, record: ParityRecord) -> bool:
    """As `golden.passes`, by the rule of CoreML where it answers."""
    decoder = classifier.decoder
    if isinstance(decoder, StaticDecoderSession):
        return agrees(decoder.precision, record.num_tickets, record.labels_equal, record.max_logprob_diff)
    return passes(record)


def inspect_bundle(bundle: str) -> int:
    """Print what the manifest says; reads nothing else."""
    folder = find_bundle(bundle)
    for name, value in _facts(read_manifest(folder)):
        click.echo(f"{name + ':':<14}{value}")
    return 0


def describe_parity(record: ParityRecord) -> str:
    return (
        f"{record.labels_equal}/{record.num_tickets} labels equal, {record.scoring} scoring, "
        f"max |log-prob difference| {record.max_logprob_diff:.1e} (tolerance {record.tolerance:.0e})"
    )


def _graph_files(manifest: Manifest) -> str:
    graphs = [manifest.graph(precision) for precision in get_args(GraphPrecision)]
    return ", ".join(f"{graph.file} ({graph.precision})" for graph in graphs if graph is not None)


def describe_bound(bound: MarginBound) -> str:
    return (
        f"{bound.scoring}: margins off by at most {bound.bound:.3f} nats on {bound.num_rows} rows of up to "
        f"{bound.max_labels} labels; with {bound.confidence:.0%} confidence no more than {bound.beyond_share:.2%} are "
        f"further off; alone it chose another label on {bound.labels_differ}"
    )


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    model, graph = manifest.model, manifest.decoder
    total = sum(record.size_bytes for record in manifest.files.values())
    head = "tied to the embedding" if manifest.lm_head is None else "its own matrix"
    return [
        ("model", model.id),
        ("revision", model.revision or "none recorded"),
        ("source", model.source),
        ("licence", model.licence),
        ("family", f"{model.family}, {graph.num_layers} layers, hidden size {graph.hidden_size}, head {head}"),
        ("graph", f"{_graph_files(manifest)}, at most {model.max_positions} positions"),
        *(("coreml", graph.file) for graph in manifest.coreml),
        ("size", f"{total / 1e6:.0f} MB in {len(manifest.files)} files"),
        ("digest", manifest.digest),
        ("onnxruntime", f"{manifest.min_onnxruntime} or newer"),
        *(("int8", describe_bound(bound)) for bound in (manifest.int8.bounds if manifest.int8 else ())),
        *(("parity", f"{record.workload}: {describe_parity(record)}") for record in manifest.parity),
        ("made with", ", ".join(f"{name} {version}" for name, version in manifest.tools.items())),
    ]
