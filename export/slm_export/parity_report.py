"""The result of slm-parity as JSON and as a table."""

import importlib.metadata
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slm_export.parity_run import MAX_WHOLE_PASSES, WARM_UP_TICKETS, ReferenceRun, StrategyRun
from slm_export.stopwatch import Timing
from slm_runtime.errors import OutputError
from slm_runtime.golden import TOLERANCE_NATS
from slm_runtime.machine import describe_machine, versions
from slm_runtime.manifest import Manifest
from slm_runtime.planning import Strategy
from slm_runtime.task import Task
from slm_runtime.workloads import Workload

# Measured for PyTorch on two threads: 0.95 alone, 0.5 beside one busy process.
DISTURBED_CPU_SHARE = 0.75
_COLUMNS = ("", "items/s", "x item", "x bucketed", "labels equal", "max |dlogprob|", "padding")


def build_report(
    manifest: Manifest,
    workload: Workload,
    task: Task,
    reference: ReferenceRun,
    runs: Mapping[Strategy, StrategyRun],
    *,
    num_threads: int,
) -> dict[str, Any]:
    """Everything that was measured, ready for JSON. Rates are tickets per second, differences nats."""
    num_tickets = len(reference.kept)
    return {
        "scoring": reference.rule,
        "workload": {
            "name": workload.name,
            "tickets": num_tickets,
            "unusable_rows": workload.num_skipped,
            "too_long": len(workload.texts) - num_tickets,
            "max_tokens": reference.max_tokens,
        },
        "task": {"digest": task.digest, "num_labels": len(task.labels)},
        "bundle": {"id": manifest.model.id, "digest": manifest.digest},
        "reference": {
            "item": {
                **_speed(reference.item_time, num_tickets, num_threads),
                "reuses_prompt": reference.reuses_prompt,
            },
            "bucketed": {
                **_speed(reference.bucketed_time, num_tickets, num_threads),
                "labels_equal": reference.bucketed_labels_equal,
                "of": num_tickets,
                "padding_share": reference.bucketed.padding_share,
            },
        },
        "runtime": {strategy: _strategy(run, reference, num_threads) for strategy, run in runs.items()},
        "tolerance": TOLERANCE_NATS,
        "timing": f"tokenisation included; loading and a warm-up of {WARM_UP_TICKETS} tickets excluded",
        "machine": describe_machine(num_threads),
        "versions": _versions(),
    }


def _speed(timing: Timing, num_tickets: int, num_threads: int) -> dict[str, float]:
    return {"items_per_s": num_tickets / timing.wall_s, "cpu_share": timing.cpu_share(num_threads)}


def _strategy(run: StrategyRun, reference: ReferenceRun, num_threads: int) -> dict[str, Any]:
    agreement = run.agreement
    return {
        **_speed(run.run_time, agreement.of, num_threads),
        "ratio_to_item": reference.item_time.wall_s / run.run_time.wall_s,
        "ratio_to_bucketed": reference.bucketed_time.wall_s / run.run_time.wall_s,
        "labels_equal": agreement.labels_equal,
        "of": agreement.of,
        "max_logprob_diff": agreement.max_logprob_diff,
        "padding_share": run.padding_share,
        "worst_ticket": asdict(agreement.worst) if agreement.worst else None,
    }


def _versions() -> dict[str, str]:
    return versions() | {name: importlib.metadata.version(name) for name in ("torch", "transformers")}


def to_json(report: Mapping[str, Any]) -> str:
    """The report as one JSON text."""
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(report: Mapping[str, Any], path: Path) -> None:
    """The report in a file that is whole or not there.

    Raises:
        OutputError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.write_text(to_json(report), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def to_table(report: Mapping[str, Any]) -> str:
    """The report as a table, with the worst ticket below it where something differs."""
    reference, runtime = report["reference"], report["runtime"]
    item, bucketed = reference["item"]["items_per_s"], reference["bucketed"]["items_per_s"]
    rows = [_COLUMNS, ("reference, item by item", f"{item:.2f}", "1.00", f"{item / bucketed:.2f}", "", "", "")]
    for name, found in {"reference, bucketed": reference["bucketed"], **runtime}.items():
        rate, diff = found["items_per_s"], found.get("max_logprob_diff")
        rows.append(
            (
                name if name not in runtime else f"runtime, {name}",
                f"{rate:.2f}",
                f"{rate / item:.2f}",
                f"{rate / bucketed:.2f}",
                f"{found['labels_equal']}/{found['of']}",
                "" if diff is None else f"{diff:.1e}",
                f"{found['padding_share']:.1%}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([*(line.rstrip() for line in lines), "", *_notes(report)]) + "\n"


def _notes(report: Mapping[str, Any]) -> list[str]:
    workload = report["workload"]
    notes = [f"{workload['tickets']} tickets of {workload['name']}, scoring {report['scoring']}. {report['timing']}."]
    if report["reference"]["item"]["reuses_prompt"]:
        notes.append(
            f"More than {MAX_WHOLE_PASSES} passes per ticket: the reference ran each prompt once and continued a copy "
            "of its cache per label."
        )
    measured = {f"{side}, {name}": found for side in ("reference", "runtime") for name, found in report[side].items()}
    for name, found in measured.items():
        if found["cpu_share"] < DISTURBED_CPU_SHARE:
            notes.append(
                f"WARNING {name}: got {found['cpu_share']:.0%} of its threads' processor time, so other processes "
                "disturbed it or it could not use its threads. Measure again on an idle machine."
            )
    for name, found in report["runtime"].items():
        worst = found["worst_ticket"]
        if worst and found["labels_equal"] < found["of"]:
            notes.append(f"{name}: ticket {worst['row']} is {_answer(worst)}, reference {worst['reference_label']!r}.")
    return notes


def _answer(worst: Mapping[str, Any]) -> str:
    return f"unanswered ({worst['error']})" if worst["error"] else repr(worst["runtime_label"])
