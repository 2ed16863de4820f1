"""`slm-run bench`: the strategies one after the other, in rounds, and how near the decoder comes to bare products."""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import click
from tqdm import tqdm

from slm_runtime.classifier import Classifier
from slm_runtime.command import say_on_stderr
from slm_runtime.errors import InputError, OutputError
from slm_runtime.machine import describe_machine, peak_memory_bytes, versions
from slm_runtime.manifest import Manifest
from slm_runtime.options import RunCounts, RunOptions
from slm_runtime.planning import Strategy
from slm_runtime.precision import Precision
from slm_runtime.records import Prediction, Ticket
from slm_runtime.session import Roofline
from slm_runtime.task import Task, read_task
from slm_runtime.workloads import SEED_LABELS, load_workload

WARM_UP_TICKETS = 2
ROOFLINE_REPEATS = 2


@dataclass(frozen=True)
class BenchRequest:
    """The flags of `slm-run bench`, as click delivers them."""

    bundle: str
    workload: str
    task: Path | None
    text_column: str
    limit: int | None
    strategies: str
    precision: str
    no_dedupe: bool
    rounds: int
    no_roofline: bool
    json: str | None
    provider: str
    threads: int | None

    def variants(self) -> "list[Variant]":
        """Every strategy in every precision, in the order asked for."""
        strategies = get_args(Strategy) if self.strategies == "all" else _names("strategies", self.strategies, Strategy)
        precisions = _names("precision", self.precision, Precision)
        return [
            Variant(strategy if len(precisions) == 1 else f"{strategy}/{precision}", strategy, precision)
            for strategy in strategies
            for precision in precisions
        ]


def _names(what: str, text: str, kind: Any) -> list[Any]:
    names, known = [name.strip() for name in text.split(",")], get_args(kind)
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{what}: {unknown[0]!r} is unknown, expected some of {', '.join(known)}")
    return names


@dataclass(frozen=True)
class Variant:
    """One line of the table."""

    name: str
    strategy: Strategy
    precision: Precision


@dataclass
class Measured:
    """The rounds of one variant; labels and counts are those of the last round."""

    rates: list[float] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    first_label_s: float = 0.0
    counts: RunCounts = field(default_factory=RunCounts)


def run_bench(request: BenchRequest) -> int:
    """Measure, then print a table, or JSON."""
    variants = request.variants()
    started = time.perf_counter()
    classifiers = {
        precision: Classifier.load(
            request.bundle,
            provider=request.provider,
            threads=request.threads,
            precision=precision,
            say=say_on_stderr,
        )
        for precision in dict.fromkeys(variant.precision for variant in variants)
    }
    load_s = time.perf_counter() - started
    workload = load_workload(request.workload, limit=request.limit, text_column=request.text_column)
    task = read_task(request.task) if request.task else Task(SEED_LABELS)
    tickets = [Ticket(row, None, text) for row, text in enumerate(workload.texts)]
    measured = {variant.name: Measured() for variant in variants}
    for number in range(request.rounds):
        for variant in variants if number % 2 == 0 else reversed(variants):
            options = RunOptions(strategy=variant.strategy, dedupe=not request.no_dedupe)
            _measure(classifiers[variant.precision], task, options, tickets, measured[variant.name])
    peak_bytes = peak_memory_bytes()
    first = classifiers[variants[0].precision]
    labels = measured[variants[0].name].labels
    report = {
        "workload": {"name": workload.name, "tickets": len(tickets), "unusable_rows": workload.num_skipped},
        "load_s": load_s,
        "strategies": {name: _describe(one, len(tickets), labels) for name, one in measured.items()},
        "roofline": None if request.no_roofline else _roofline(first, measured[variants[0].name].counts),
        "peak_memory_bytes": peak_bytes,
        "machine": describe_machine(first.num_threads),
        "versions": versions(),
    }
    _publish(report, request.json)
    return 0


def _measure(classifier: Classifier, task: Task, options: RunOptions, tickets: list[Ticket], into: Measured) -> None:
    """One round, tokenisation included, after a warm-up."""
    list(classifier.prepare(task, options).run(tickets[:WARM_UP_TICKETS]))
    started = time.perf_counter()
    runner = classifier.prepare(task, options)
    finished: list[float] = []
    with tqdm(total=len(tickets), unit="row", desc=options.strategy, disable=not sys.stderr.isatty()) as bar:

        def on_finished(predictions: Sequence[Prediction]) -> None:
            if predictions and not finished:
                finished.append(time.perf_counter() - started)
            bar.update(len(predictions))

        into.labels = [prediction.label for prediction in runner.run(tickets, on_finished)]
    into.rates.append(len(tickets) / (time.perf_counter() - started))
    into.first_label_s, into.counts = finished[0], runner.counts


def _describe(measured: Measured, num_tickets: int, labels: Sequence[str | None]) -> dict[str, Any]:
    """`labels` are those of the first variant."""
    counts = measured.counts
    return {
        "items_per_s": statistics.median(measured.rates),
        "items_per_s_rounds": measured.rates,
        "first_label_s": measured.first_label_s,
        "prompt_tokens": counts.prompt_tokens,
        "real_tokens": counts.real_tokens,
        "processed_tokens": counts.processed_tokens,
        "padding_share": counts.padding_share,
        "prefix_saved_tokens": counts.prefix_saved_tokens,
        "tree_saved_tokens": counts.tree_saved_tokens,
        "duplicates": counts.duplicates,
        "rechecked": counts.rechecked,
        "changed": counts.changed,
        "labels_equal": sum(mine == theirs for mine, theirs in zip(measured.labels, labels, strict=True)),
        "calls": sum(counts.call_sizes.values()),
        "decoder_s": counts.decoder_s,
        "host_share": 1 - counts.model_s / (num_tickets / measured.rates[-1]),
    }


def _roofline(classifier: Classifier, counts: RunCounts) -> dict[str, float] | None:
    """The decoder's calls of the first variant against bare products of the same sizes, measured right after.

    None for an int8 decoder: the bare products are float ones.
    """
    manifest = classifier.bundle.manifest
    if manifest.roofline is None or classifier.decoder.spec.precision != "fp32":
        return None
    roofline = Roofline(
        classifier.bundle.folder,
        manifest.roofline,
        manifest.decoder.hidden_size,
        num_threads=classifier.num_threads,
    )
    roofline.run_s(64)
    chain_s = sum(
        calls * min(roofline.run_s(size) for _ in range(ROOFLINE_REPEATS)) for size, calls in counts.call_sizes.items()
    )
    multiply_adds = _products_per_token(manifest) * counts.processed_tokens
    return {
        "decoder_gflops": 2e-9 * multiply_adds / counts.decoder_s,
        "chain_gflops": 2e-9 * multiply_adds / chain_s,
        "share": chain_s / counts.decoder_s,
    }


def _products_per_token(manifest: Manifest) -> float:
    """Multiply-adds of the weight products that every token takes part in: of the last layer only the first one."""
    spec = manifest.decoder
    first_product = spec.hidden_size * spec.head_dim * (spec.num_heads + 2 * spec.num_kv_heads)
    return manifest.weight_bytes(spec) / 4 / spec.num_layers * (spec.num_layers - 1) + first_product


def _publish(report: dict[str, Any], target: str | None) -> None:
    text = json.dumps(report, indent=2) + "\n"
    if target == "-":
        click.echo(text, nl=False)
        return
    click.echo(_table(report), nl=False)
    if target is not None:
        try:
            Path(target).write_text(text, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{target}: cannot be written ({error.strerror})") from error


def _table(report: dict[str, Any]) -> str:
    width = max(10, *(len(name) + 1 for name in report["strategies"]))
    columns = f"{'items/s':>9}{'first label':>13}{'processed':>11}{'padding':>9}{'calls':>7}{'host':>7}"
    lines = [f"{'strategy':<{width}}{columns}{'re-checked':>12}{'labels equal':>14}"]
    for name, row in report["strategies"].items():
        lines.append(
            f"{name:<{width}}{row['items_per_s']:>9.2f}{row['first_label_s']:>11.2f} s{row['processed_tokens']:>11}"
            f"{row['padding_share']:>9.2%}{row['calls']:>7}{row['host_share']:>7.1%}"
            f"{row['rechecked']:>12}{row['labels_equal']:>14}"
        )
    first = next(iter(report["strategies"].values()))
    lines.append(
        f"{report['workload']['tickets']} tickets, {first['prompt_tokens']} prompt tokens; saved by the prefix "
        f"{first['prefix_saved_tokens']}, by shared beginnings {first['tree_saved_tokens']}"
    )
    if roofline := report["roofline"]:
        lines.append(
            f"decoder {roofline['decoder_gflops']:.0f} GFLOP/s, bare products {roofline['chain_gflops']:.0f} GFLOP/s: "
            f"{roofline['share']:.0%}"
        )
    lines.append(f"loading {report['load_s']:.2f} s, peak memory {report['peak_memory_bytes'] / 1e6:.0f} MB")
    return "\n".join(lines) + "\n"
