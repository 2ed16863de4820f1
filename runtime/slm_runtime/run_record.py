"""`OUTPUT.run.json`: what was run, on what, and how it went. Read again by --resume and by the report."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slm_runtime.classifier import Classifier, TaskRunner
from slm_runtime.machine import describe_machine, peak_memory_bytes, versions
from slm_runtime.options import RunCounts
from slm_runtime.run_identity import Identity
from slm_runtime.writers import write_file


def record_path(output: Path) -> Path:
    """Where the record of the run that wrote `output` lies."""
    return output.with_name(output.name + ".run.json")


def describe_run(
    classifier: Classifier,
    runner: TaskRunner,
    *,
    flags: Mapping[str, Any],
    identity: Identity | None,
    timings: Mapping[str, float],
    timeline: Sequence[tuple[float, int]],
) -> dict[str, Any]:
    """The record, ready for JSON. `identity` is None for a run that could not have been resumed."""
    return {
        "versions": versions(),
        "bundle": {"id": classifier.bundle.manifest.model.id, "digest": classifier.bundle.manifest.digest},
        "task": {
            "digest": runner.task.digest,
            "labels": runner.task.labels,
            "scoring": runner.rule,
            "abstain": runner.task.abstain,
        },
        "flags": {name: str(value) if isinstance(value, Path) else value for name, value in flags.items()},
        "identity": identity,
        "machine": describe_machine(classifier.num_threads),
        "provider": classifier.decoder.provider,
        "precision": _precision(runner),
        "graphs": classifier.decoder.describe(),
        "refused_graphs": list(classifier.decoders.failures),
        **describe_counts(runner.counts),
        "timings": {name: round(value, 4) for name, value in timings.items()},
        "timeline": timeline,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def describe_counts(counts: RunCounts) -> dict[str, Any]:
    """The part of the record that grows with the rows."""
    processed = sorted(counts.processed_by_length.items())
    return {
        "counts": {
            field.name: getattr(counts, field.name)
            for field in dataclasses.fields(counts)
            if not field.name.endswith("_by_length")
        },
        "padding_share": counts.padding_share,
        "lengths": [
            {"length": length, "real_tokens": counts.real_by_length[length], "processed_tokens": tokens}
            for length, tokens in processed
        ],
    }


def _precision(runner: TaskRunner) -> dict[str, Any]:
    """What decided the labels; with int8, what the export measured about it and what came of it here."""
    facts: dict[str, Any] = {"labels_by": runner.precision}
    if runner.precision in ("auto", "int8") and runner.bound is not None:
        bound = runner.bound
        facts["measured_at_export"] = dataclasses.asdict(bound)
        facts["int8_differs"] = {"rows": bound.labels_differ, "of": bound.num_rows}
    if runner.precision == "auto":
        facts |= {"int8_used_throughout": runner.int8_pays, "rechecked": runner.counts.rechecked}
        facts["changed"] = runner.counts.changed
    return facts


def write_record(output: Path, record: Mapping[str, Any]) -> None:
    """Write the record of `output`, whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    write_file(record_path(output), text.encode())


def read_record(output: Path) -> dict[str, Any]:
    """The record of the run that wrote `output`; empty where there is none that can be read."""
    try:
        data = json.loads(record_path(output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
