"""Tickets through a float16 graph with every tensor rounded: ranges of all tensors, labels and log-probabilities."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import torch

from slm_export.static_answers import Difference, RoundedGraph, compare_answers, static_classifier
from slm_export.tensor_ranges import TensorRange, TensorRanges
from slm_runtime.bundle import Bundle
from slm_runtime.classifier import Classifier
from slm_runtime.errors import InputError, OutputError
from slm_runtime.options import RunOptions
from slm_runtime.static_graph import StaticGraphSpec
from slm_runtime.task import Task
from slm_runtime.workloads import Workload

SHOWN_ROWS = 14


@dataclass(frozen=True)
class Fp16Report:
    """`largest` holds of every kind of tensor the one with the largest values, `overflowed` all that are not finite.

    `cached` and `whole` compare answers with the float32 decoder, with the prompt's prefix in the past and without.
    """

    model: str
    graph: str
    workload: str
    cached: Difference
    whole: Difference
    overflowed: tuple[TensorRange, ...]
    largest: tuple[TensorRange, ...]


def evaluate(bundle: Bundle, workload: Workload, task: Task, *, num_threads: int) -> Fp16Report:
    """The report on the largest float16 graph of `bundle`.

    Raises:
        InputError: the bundle has no float16 graph.
    """
    spec = _largest_graph(bundle)
    torch.set_num_threads(num_threads)
    ranges = TensorRanges()
    graph = RoundedGraph(bundle.folder / spec.file, ranges)
    rounded = static_classifier(bundle, [spec], lambda _: graph, num_threads=num_threads)
    expected = Classifier.load(bundle.folder, threads=num_threads).classify(
        workload.texts, task, RunOptions(all_scores=True)
    )
    cached, whole = (
        compare_answers(
            expected, rounded.classify(workload.texts, task, RunOptions(prefix_cache=cached, all_scores=True))
        )
        for cached in (True, False)
    )
    overflowed, largest = tuple(ranges.overflowed()), tuple(ranges.largest_by_kind())
    return Fp16Report(bundle.manifest.model.id, spec.file, workload.name, cached, whole, overflowed, largest)


def _largest_graph(bundle: Bundle) -> StaticGraphSpec:
    graphs = [spec for spec in bundle.manifest.coreml if spec.precision == "fp16"]
    if not graphs:
        raise InputError(f"{bundle.folder}: holds no float16 graph; export it with --profile coreml --precision fp16")
    return max(graphs, key=lambda spec: (spec.num_tokens, spec.past_len))


def to_table(report: Fp16Report) -> str:
    """The report in Markdown."""
    lines = [
        f"{report.model}, {report.graph}, workload {report.workload}, every tensor rounded to float16:",
        "",
        "| answers | tickets | labels equal | max \\|dlogprob\\| | median | margins of the others |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        _answer_row("prefix in the past", report.cached),
        _answer_row("whole prompts", report.whole),
        "",
        "| tensor | largest \\|x\\| | times below the limit |",
        "| --- | ---: | ---: |",
        *_range_rows(report.largest),
        "",
        f"{len(report.overflowed)} tensors overflow" + "".join(f"; `{found.name}`" for found in report.overflowed[:8]),
    ]
    return "\n".join(lines)


def write_json(report: Fp16Report, path: Path) -> None:
    """Raises OutputError."""
    try:
        path.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); choose another --json") from error


def _answer_row(name: str, found: Difference) -> str:
    margins = ", ".join(f"{flip.margin:.3f}" for flip in found.flips)
    equal = f"{found.tickets - len(found.flips)}/{found.tickets}"
    figures = f"{found.max_logprob_diff:.3f} | {found.median_logprob_diff:.3f} | {margins}"
    return f"| {name} | {found.tickets} | {equal} | {figures} |"


def _range_rows(largest: Sequence[TensorRange]) -> Iterator[str]:
    """One row for every value: tensors that only pass another one on share its row."""
    for _, group in islice(groupby(largest, key=lambda found: (found.largest, found.infinite, found.nan)), SHOWN_ROWS):
        found = sorted(group, key=lambda tensor: len(tensor.name))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"| `{found[0].name}`{more} | {found[0].largest:,.6g} | {_headroom(found[0])} |"


def _headroom(found: TensorRange) -> str:
    return f"{found.headroom:,.1f}" if found.is_finite else f"{found.infinite} infinite, {found.nan} NaN"
