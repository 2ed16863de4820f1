"""What float16 does to a bundle's CoreML graphs: `python -m slm_export.coreml_fp16 BUNDLE`.

The graph is evaluated node by node with every tensor rounded to float16. That is the worst a device may do: many keep
more inside of an operator.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from slm_export.extras import require_export_extra
from slm_runtime.bundle import open_bundle
from slm_runtime.command import run_command
from slm_runtime.label_file import parse_labels
from slm_runtime.task import Task, read_task
from slm_runtime.threads import usable_threads
from slm_runtime.workloads import SEED, SEED_LABELS, load_workload


@click.command("coreml_fp16")
@click.argument("bundle")
@click.option("--workload", default=SEED, show_default=True, help="`seed`, or a file of tickets.")
@click.option("--task", "task_path", type=click.Path(path_type=Path), help="Task file; else the workload's labels.")
@click.option("--labels", help="Labels with commas, for a workload of your own.")
@click.option("--limit", type=click.IntRange(1), default=60, show_default=True, help="Tickets to read.")
@click.option("--threads", type=click.IntRange(1), help="Processor threads.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the report there.")
def coreml_fp16(
    bundle: str,
    workload: str,
    task_path: Path | None,
    labels: str | None,
    limit: int,
    threads: int | None,
    json_path: Path | None,
) -> int:
    """Evaluate the largest float16 graph of BUNDLE, every tensor rounded, and compare with the float32 decoder.

    Exit code 3 when a tensor overflows.
    """
    require_export_extra()
    from slm_export.fp16_report import evaluate, to_table, write_json

    task = _task(workload, task_path, labels)
    tickets = load_workload(workload, limit=limit)
    report = evaluate(open_bundle(bundle), tickets, task, num_threads=usable_threads(threads))
    click.echo(to_table(report))
    if json_path:
        write_json(report, json_path)
    return 3 if report.overflowed else 0


def _task(workload: str, task_path: Path | None, labels: str | None) -> Task:
    if task_path and labels is not None:
        raise click.UsageError("give --labels or --task, not both")
    if task_path:
        return read_task(task_path)
    if labels is not None:
        return Task(labels=tuple(parse_labels(labels)))
    if workload != SEED:
        raise click.UsageError("--workload FILE needs --labels or --task")
    return Task(labels=SEED_LABELS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(coreml_fp16, argv, env_prefix="SLM_COREML_FP16")


if __name__ == "__main__":
    sys.exit(main())
