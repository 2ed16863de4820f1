"""`slm-run classify`: from flags to files, a progress bar, a summary and a sidecar."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from slm_runtime.classifier import Classifier, TaskRunner
from slm_runtime.errors import OutputError
from slm_runtime.label_file import case_twins, parse_labels, read_labels
from slm_runtime.machine import describe_machine, peak_memory_bytes, versions
from slm_runtime.options import RunOptions, Truncate
from slm_runtime.planning import Strategy
from slm_runtime.readers import open_tickets
from slm_runtime.records import Ticket
from slm_runtime.session import keep_prepacked
from slm_runtime.task import Scoring, Task, read_task
from slm_runtime.writers import open_output

ALL_LABELLED, SOME_FAILED = 0, 1
LOW_LABEL_MASS = 0.05


@dataclass(frozen=True)
class ClassifyRequest:
    """The flags of `slm-run classify`, as click delivers them."""

    bundle: str
    input: str
    output: str
    labels: str | None
    labels_file: Path | None
    task: Path | None
    text_column: str
    id_column: str | None
    input_format: str | None
    encoding: str | None
    delimiter: str | None
    scoring: Scoring | None
    provider: str
    threads: int | None
    batch_tokens: int
    strategy: Strategy
    no_prefix_cache: bool
    all_scores: bool
    no_dedupe: bool
    max_tokens: int | None
    truncate: Truncate
    threshold: float | None
    limit: int | None
    overwrite: bool
    quiet: bool

    def read_task(self) -> Task:
        """The task of --task, or of the labels with the default prompt; flags win over the file."""
        sources = [s for s in (self.labels, self.labels_file, self.task) if s is not None]
        if len(sources) != 1:
            raise click.UsageError("give exactly one of --labels, --labels-file and --task")
        if self.task:
            task = read_task(self.task)
        else:
            labels = parse_labels(self.labels) if self.labels is not None else read_labels(sources[0])
            task = Task(labels=tuple(labels))
        threshold = task.threshold if self.threshold is None else self.threshold
        return dataclasses.replace(task, scoring=self.scoring or task.scoring, threshold=threshold)

    def options(self) -> RunOptions:
        return RunOptions(
            strategy=self.strategy,
            prefix_cache=not self.no_prefix_cache,
            dedupe=not self.no_dedupe,
            all_scores=self.all_scores,
            batch_tokens=self.batch_tokens,
            max_tokens=self.max_tokens,
            truncate=self.truncate,
        )


def classify_file(request: ClassifyRequest) -> int:
    """Label every row of the input; the exit code says whether all of them got a label."""
    started = time.perf_counter()
    task, options = request.read_task(), request.options()
    say = _silent if request.quiet else _on_stderr
    for twins in case_twins(task.labels):
        say(f"warning: labels {' and '.join(map(repr, twins))} differ in case only and share the vote")
    reader = open_tickets(
        request.input,
        text_column=request.text_column,
        id_column=request.id_column,
        encoding=request.encoding,
        delimiter=request.delimiter,
        format=request.input_format,
    )
    with reader, open_output(request.output, columns=reader.columns, overwrite=request.overwrite) as writer:
        classifier = Classifier.load(request.bundle, provider=request.provider, threads=request.threads)
        runner = classifier.prepare(task, options)
        loaded = time.perf_counter()
        hidden = request.quiet or not sys.stderr.isatty()
        with tqdm(unit="row", file=sys.stderr, disable=hidden) as bar:
            low_mass = _write_all(runner, islice(reader, request.limit), writer, bar)
    finished = time.perf_counter()
    timings = {"load_s": loaded - started, "run_s": finished - loaded, "model_s": runner.counts.model_s}
    _write_sidecar(request, classifier, runner, timings)
    if runner.counts.rows and low_mass > runner.counts.rows / 2:
        say(f"warning: on {low_mass} rows the labels hold under {LOW_LABEL_MASS:.0%} of the model's answer")
    _summarise(runner, timings, say)
    exit_code = SOME_FAILED if runner.counts.errors else ALL_LABELLED
    bundle, num_threads = classifier.bundle, classifier.num_threads
    del classifier, runner  # their session's memory is needed for the copy
    if keep_prepacked(bundle.folder, bundle.manifest, num_threads=num_threads):
        say("kept the weights in this machine's layout: the next start is quicker")
    return exit_code


def _write_all(runner: TaskRunner, tickets: Iterator[Ticket], writer: Any, bar: Any) -> int:
    """Run and write everything; returns on how many rows the labels hold next to none of the probability."""
    waiting: dict[int, Ticket] = {}

    def remembered() -> Iterator[Ticket]:
        for ticket in tickets:
            waiting[ticket.row] = ticket
            yield ticket

    low_mass = 0
    for prediction in runner.run(remembered(), bar.update):
        writer.write(waiting.pop(prediction.row), prediction)
        low_mass += prediction.label_mass is not None and prediction.label_mass < LOW_LABEL_MASS
    writer.flush()
    return low_mass


def _write_sidecar(
    request: ClassifyRequest, classifier: Classifier, runner: TaskRunner, timings: dict[str, float]
) -> None:
    """`OUTPUT.run.json`, beside an output that is a regular file."""
    output = Path(request.output)
    if not output.is_file():
        return
    flags = {name: str(value) if isinstance(value, Path) else value for name, value in vars(request).items()}
    record = {
        "versions": versions(),
        "bundle": {"id": classifier.bundle.manifest.model.id, "digest": classifier.bundle.manifest.digest},
        "task": {"digest": runner.task.digest, "labels": runner.task.labels, "scoring": runner.rule},
        "flags": flags,
        "machine": describe_machine(classifier.num_threads),
        "provider": classifier.decoder.provider,
        "counts": dataclasses.asdict(runner.counts),
        "timings": {name: round(value, 4) for name, value in timings.items()},
        "peak_memory_bytes": peak_memory_bytes(),
    }
    path = output.with_name(output.name + ".run.json")
    try:
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); {output} is complete") from error


def _summarise(runner: TaskRunner, timings: dict[str, float], say: Any) -> None:
    counts = runner.counts
    rate = counts.rows / timings["run_s"] if timings["run_s"] else 0.0
    say(
        f"{counts.rows} rows in {timings['run_s']:.1f} s ({rate:.1f} rows/s, {runner.rule} scoring): "
        f"{counts.errors} errors, {counts.truncated} truncated, {counts.duplicates} duplicates; "
        f"{counts.processed_tokens} of {counts.prompt_tokens} prompt tokens processed, "
        f"{counts.padding_share:.1%} padding; peak memory {peak_memory_bytes() / 1e6:.0f} MB"
    )


def _on_stderr(message: str) -> None:
    click.echo(f"slm-run: {message}", err=True)


def _silent(_: str) -> None:
    return
