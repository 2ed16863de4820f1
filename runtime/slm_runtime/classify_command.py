"""`slm-run classify`: check everything that can be checked, then run."""

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from slm_runtime.classifier import Classifier, TaskRunner, windows
from slm_runtime.classify_job import Job
from slm_runtime.classify_request import ClassifyRequest
from slm_runtime.command import say_on_stderr
from slm_runtime.coreml.choice import check_provider
from slm_runtime.dry_run import describe_job
from slm_runtime.errors import RejectedRowsError
from slm_runtime.explain import explain_row
from slm_runtime.label_file import case_twins
from slm_runtime.records import Prediction, Ticket
from slm_runtime.resumable import Destination
from slm_runtime.session import keep_prepacked
from slm_runtime.survey import survey_file

SHOWN_FAILURES = 3


def classify_file(request: ClassifyRequest) -> int:
    """Label every row of the input; the exit code says whether all of them got a label."""
    started = time.perf_counter()
    check_provider(request.provider)  # before the input is read through
    task, options = request.read_task(), request.options()
    say = _silent if request.quiet else say_on_stderr
    for twins in case_twins(task.labels):
        say(f"warning: labels {' and '.join(map(repr, twins))} differ in case only and share the vote")
    only_looks = request.dry_run or request.explain is not None
    destination = None
    if not only_looks:
        destination = Destination(
            Path(request.output),
            Path(request.input) if request.input_is_file else None,
            resume=request.resume,
            overwrite=request.overwrite,
        )
    with request.open_input() as reader:
        survey = None
        if request.input_is_file and not only_looks:
            survey = survey_file(Path(request.input), request.open_input(), request.limit)
        classifier = Classifier.load(
            request.bundle,
            provider=request.provider,
            threads=request.threads,
            precision=request.precision,
            say=say,
        )
        runner = classifier.prepare(task, options)
        if classifier.is_guarded and runner.precision == "fp32":
            say(
                f"int8 was not measured with {len(task.labels)} labels under {runner.rule} scoring: "
                "all rows are labelled in fp32"
            )
        load_s = time.perf_counter() - started
        tickets: Iterator[Ticket] = islice(reader, request.limit)
        if request.explain is not None:
            return explain_row(runner, tickets, request.explain)
        if request.dry_run:
            return describe_job(classifier, runner, tickets)
        assert destination is not None
        if request.strict:
            tickets = _all_usable(request, runner, tickets)
        job = Job(request, destination, reader, survey, classifier, runner, say, load_s)
        exit_code = job.run(tickets)
    bundle, num_threads, graphs = classifier.bundle, classifier.num_threads, classifier.open_graphs
    del classifier, runner, job  # their sessions' memory is needed for the copies
    kept = [keep_prepacked(bundle.folder, bundle.manifest, graph, num_threads=num_threads) for graph in graphs]
    if any(kept):
        say("kept the weights in this machine's layout: the next start is quicker")
    return exit_code


def _all_usable(request: ClassifyRequest, runner: TaskRunner, tickets: Iterator[Ticket]) -> Iterator[Ticket]:
    """The tickets, when every one of them can be classified; those of standard input are held in memory for that.

    Raises:
        RejectedRowsError: names the first rows that cannot.
    """
    if not request.input_is_file:
        held = list(tickets)
        _reject_failures(request.input, runner, held)
        return iter(held)
    with request.open_input() as second:
        _reject_failures(request.input, runner, islice(second, request.limit))
    return tickets


def _reject_failures(name: str, runner: TaskRunner, tickets: Iterable[Ticket]) -> None:
    failures: list[Prediction] = []
    num_rows = 0
    for window in windows(tickets, runner.options.window):
        failures += runner.encode(window)[1]
        num_rows += len(window)
    if failures:
        first = "; ".join(f"row {p.row}: {p.error}" for p in failures[:SHOWN_FAILURES])
        raise RejectedRowsError(
            f"{name}: {len(failures)} of {num_rows} rows cannot be classified ({first}); "
            "correct them, or leave out --strict to label the others"
        )


def _silent(_: str) -> None:
    return
