"""`slm-run tune`: a task file and rows with right labels in, a calibrated task file and its quality out."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from slm_runtime.calibration import Calibration
from slm_runtime.classifier import Classifier
from slm_runtime.command import say_on_stderr
from slm_runtime.content_free import CONTENT_FREE_TEXTS, content_free_prior
from slm_runtime.errors import InputError, OutputError
from slm_runtime.machine import describe_machine, versions
from slm_runtime.records import Prediction
from slm_runtime.task import Task, read_task
from slm_runtime.tune import ScoredRows, Tuning, check_tunable, score_rows, tune
from slm_runtime.tune_file import require_tomlkit, tuned_text
from slm_runtime.tune_fit import rounded
from slm_runtime.tune_gold import GoldData, GoldRow, read_gold
from slm_runtime.tune_table import tuning_table
from slm_runtime.writers import write_file


@dataclass(frozen=True)
class TuneRequest:
    """The flags of `slm-run tune`, as click delivers them."""

    bundle: str
    task: Path
    gold: Path | None
    output: Path
    gold_column: str
    text_column: str
    seed: int
    limit: int | None
    max_error: float | None
    overwrite: bool
    json: str | None
    provider: str
    threads: int | None

    @property
    def command(self) -> str:
        """The command line, but for what does not change the result."""
        gold = [] if self.gold is None else ["--gold", str(self.gold)]
        chosen: Sequence[tuple[str, object, object]] = (
            ("--gold-column", self.gold_column, "label"),
            ("--text-column", self.text_column, "text"),
            ("--seed", self.seed, 0),
            ("--limit", self.limit, None),
            ("--max-error", self.max_error, None),
        )
        flags = [str(part) for flag, value, default in chosen if value != default for part in (flag, value)]
        return shlex.join(["slm-run", "tune", self.bundle, "--task", str(self.task), *gold, *flags])


def tune_task(request: TuneRequest) -> int:
    """Fit, report, write the calibrated task file; the exit code is 0. Nothing is written when something fails.

    Raises:
        InputError: a file or the task cannot be used for this.
        OutputError: a file cannot be written.
    """
    require_tomlkit()
    _check_outputs(request)
    task = read_task(request.task)
    try:
        check_tunable(task)
    except InputError as error:
        raise InputError(f"{request.task}: {error}") from error
    if request.gold is None:
        return _tune_without_gold(request, task)
    gold = read_gold(
        request.gold,
        task.labels,
        text_column=request.text_column,
        gold_column=request.gold_column,
        limit=request.limit,
    )
    classifier = _load(request)
    scored = _score(classifier, task, gold.rows, request)
    tuning = tune(classifier, task, scored, max_error=request.max_error)
    data = f"{gold.name}, {gold.num_rows} rows, {int(scored.for_fitting.sum())} fitted on, sha256 {gold.sha256}"
    comments = _comments(request, data, classifier)
    text = tuned_text(request.task, task, tuning.calibration, threshold=tuning.threshold, comments=comments)
    report = _report(request, task, gold, scored, tuning, classifier)
    write_file(request.output, text.encode())
    _publish(report, request, tuning_table(tuning))
    _warn(request, task, tuning)
    return 0


def _tune_without_gold(request: TuneRequest, task: Task) -> int:
    if request.max_error is not None or request.json is not None or request.limit is not None:
        raise click.UsageError("--max-error, --json and --limit need --gold: without it nothing is measured")
    classifier = _load(request)
    calibration = rounded(Calibration(prior=content_free_prior(classifier, task)))
    comments = _comments(request, f"none but the content-free texts {', '.join(CONTENT_FREE_TEXTS)}", classifier)
    text = tuned_text(request.task, task, calibration, threshold=None, comments=comments)
    write_file(request.output, text.encode())
    _say(f"{request.output}: the content-free prior; give --gold to fit and measure")
    return 0


def _comments(request: TuneRequest, data: str, classifier: Classifier) -> list[str]:
    return [f"Fitted by: {request.command}", f"Data: {data}", f"Model: {classifier.bundle.manifest.model.id}"]


def _load(request: TuneRequest) -> Classifier:
    return Classifier.load(
        request.bundle, provider=request.provider, threads=request.threads, precision="fp32", say=say_on_stderr
    )


def _score(classifier: Classifier, task: Task, rows: Sequence[GoldRow], request: TuneRequest) -> ScoredRows:
    with tqdm(total=len(rows), unit="row", disable=not sys.stderr.isatty()) as bar:

        def on_finished(predictions: Sequence[Prediction]) -> None:
            bar.update(len(predictions))

        try:
            return score_rows(classifier, task, rows, seed=request.seed, on_finished=on_finished)
        except InputError as error:
            raise type(error)(f"{request.gold}: {error}") from error


def _check_outputs(request: TuneRequest) -> None:
    """Refuse names that cannot be written, before anything slow is done. Raises OutputError."""
    named = [request.output, *([Path(request.json)] if request.json not in (None, "-") else [])]
    for path in named:
        if path.is_dir() or not path.parent.is_dir() or str(path) == "-":
            raise OutputError(f"{path}: not a file in an existing folder; give another name")
    if request.output.exists() and not request.overwrite:
        raise OutputError(f"{request.output}: exists already; give another name, or --overwrite to replace it")


def _report(
    request: TuneRequest, task: Task, gold: GoldData, scored: ScoredRows, tuning: Tuning, classifier: Classifier
) -> dict[str, Any]:
    return {
        "command": request.command,
        "bundle": {"id": classifier.bundle.manifest.model.id, "digest": classifier.bundle.manifest.digest},
        "task": {"digest": task.digest, "num_labels": len(task.labels)},
        "gold": {
            "name": gold.name,
            "sha256": gold.sha256,
            "rows": gold.num_rows,
            "without_gold": gold.num_without_gold,
            "unusable": gold.num_rows - gold.num_without_gold - len(scored.gold),
            "seed": request.seed,
        },
        "max_error": request.max_error,
        **tuning.to_json(task.labels),
        "machine": describe_machine(classifier.num_threads),
        "versions": versions(),
    }


def _publish(report: dict[str, Any], request: TuneRequest, table: str) -> None:
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    click.echo(text if request.json == "-" else table, nl=False)
    if request.json not in (None, "-"):
        write_file(Path(request.json), text.encode())
    gold = report["gold"]
    skipped = f"{gold['without_gold']} rows without a gold label and {gold['unusable']} unusable ones left out"
    _say(f"{request.output}: calibrated on {gold['name']}, {skipped}")


def _warn(request: TuneRequest, task: Task, tuning: Tuning) -> None:
    before, after = tuning.held_back["before"], tuning.held_back["fitted"]
    for name, worse in (("accuracy", after.accuracy < before.accuracy), ("log-loss", after.log_loss > before.log_loss)):
        if worse:
            _say(f"warning: on the half held back {name} is worse than before; more rows may help")
    if request.max_error is not None and tuning.threshold is None:
        _say(f"warning: no threshold keeps the error rate at {request.max_error}: none was written")
    elif task.threshold is not None and tuning.threshold is None:
        _say(f"warning: the task's threshold {task.threshold} now applies to calibrated scores; see --max-error")


def _say(message: str) -> None:
    click.echo(f"slm-run: {message}", err=True)
