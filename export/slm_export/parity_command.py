"""`slm-parity`: from flags to a measurement, a table and JSON."""

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from tqdm import tqdm

from slm_export.extras import require_export_extra
from slm_export.sources import Checkpoint, resolve
from slm_runtime.bundle import open_bundle
from slm_runtime.errors import OutputError, ParityError, SourceError
from slm_runtime.label_file import parse_labels
from slm_runtime.manifest import ModelInfo
from slm_runtime.planning import Strategy
from slm_runtime.task import Scoring, Task, read_task
from slm_runtime.threads import usable_threads
from slm_runtime.workloads import SEED, SEED_LABELS, load_workload


@dataclass(frozen=True)
class ParityRequest:
    """The flags of slm-parity, as click delivers them."""

    bundle: str
    reference: str | None
    workload: str
    task_path: Path | None
    labels: str | None
    scoring: Scoring | None
    limit: int | None
    strategies: tuple[Strategy, ...]
    threads: int | None
    json: str | None
    text_column: str

    def task(self) -> Task:
        """The task of --task or of the labels, without a threshold: every ticket's label is compared."""
        if self.task_path and self.labels is not None:
            raise click.UsageError("give --labels or --task, not both")
        if self.task_path:
            task = read_task(self.task_path)
        elif self.labels is not None:
            task = Task(labels=tuple(parse_labels(self.labels)))
        elif self.workload == SEED:
            task = Task(labels=SEED_LABELS)
        else:
            raise click.UsageError("--workload FILE needs --labels or --task")
        return dataclasses.replace(task, scoring=self.scoring or task.scoring, threshold=None)


def compare_bundle(request: ParityRequest) -> int:
    """Measure, print and write the result; 0 when everything agrees.

    Raises:
        ParityError: a label differs, or a log-probability by more than the tolerance. The result was written before.
    """
    require_export_extra()
    from slm_export.parity_report import build_report, to_json, to_table, write_json
    from slm_export.parity_run import run_reference, run_strategies

    task = request.task()
    json_file = _json_file(request.json)
    workload = load_workload(request.workload, limit=request.limit, text_column=request.text_column)
    if workload.num_skipped:
        _say(f"{workload.name}: {workload.num_skipped} rows without a usable text are left out")
    bundle = open_bundle(request.bundle)
    checkpoint = _checkpoint(request.reference, bundle.manifest.model)
    threads = usable_threads(request.threads)
    reference = run_reference(checkpoint.folder, bundle, workload.texts, task, num_threads=threads, stage=_stage)
    if too_long := len(workload.texts) - len(reference.kept):
        _say(f"{workload.name}: {too_long} tickets make prompts of over {reference.max_tokens} tokens and are left out")
    runs = run_strategies(
        bundle, workload.texts, task, reference, request.strategies, num_threads=threads, stage=_stage
    )
    report = build_report(bundle.manifest, workload, task, reference, runs, num_threads=threads)
    if json_file:
        write_json(report, json_file)
    click.echo(to_json(report) if request.json == "-" else to_table(report), nl=False)
    if failed := [strategy for strategy, run in runs.items() if not run.agreement.passed]:
        raise ParityError(
            f"{request.bundle}: differs from the reference by strategy {', '.join(failed)}; "
            "the result names the worst ticket"
        )
    return 0


def _checkpoint(named: str | None, model: ModelInfo) -> Checkpoint:
    """The checkpoint that the user named, else the one that the bundle was made of."""
    if named is not None:
        return resolve(named, say=_say)
    # Only a hub's revision is a commit; those of other sources are digests, and follow from the source.
    commit = model.revision if re.fullmatch("[0-9a-f]{40}", model.revision or "") else None
    try:
        return resolve(model.source, revision=commit, say=_say)
    except SourceError as error:
        raise SourceError(f"{error} This is where the bundle came from; name its model with --reference.") from error


def _json_file(path: str | None) -> Path | None:
    """Where the JSON goes, checked before anything slow is done."""
    if path is None or path == "-":
        return None
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        raise OutputError(f"{path}: not a file in an existing folder; choose another --json")
    return file


@contextmanager
def _stage(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar for one stage on a terminal, a line elsewhere."""
    if not sys.stderr.isatty():
        _say(name)
    with tqdm(desc=name, total=total, file=sys.stderr, disable=not sys.stderr.isatty()) as bar:

        def advance(count: int) -> None:
            bar.update(count)

        yield advance


def _say(message: str) -> None:
    click.echo(f"slm-parity: {message}", err=True)
