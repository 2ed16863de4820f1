"""`slm-run classify --engine ray`: check everything that can be checked, then run the job."""

import time
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import click

from slm_runtime.bundle import find_bundle
from slm_runtime.classifier import Classifier
from slm_runtime.classify_request import ClassifyRequest
from slm_runtime.errors import OutputError
from slm_runtime.extra import require
from slm_runtime.label_file import case_twins
from slm_runtime.run_identity import Identity, configuration
from slm_runtime.run_record import describe_run
from slm_runtime.session import keep_prepacked
from slm_runtime.task import Task
from slm_runtime.writers import FORMATS


def classify_files(request: ClassifyRequest) -> int:
    """Label every row of every input file; the exit code says whether all of them got a label.

    Raises:
        InterruptedRunError: Ctrl-C or SIGTERM; complete parts are kept.
        SlmError: anything that cannot be used, before a row is labelled.
    """
    require("pyarrow", extra="ray", purpose="--engine ray")
    from slm_runtime.ray_engine.cluster import import_ray
    from slm_runtime.ray_engine.inputs import check_outside, part_names, select_inputs
    from slm_runtime.ray_engine.job import Job
    from slm_runtime.ray_engine.job_manifest import open_job
    from slm_runtime.ray_engine.storage import Storage

    started = time.perf_counter()
    import_ray(request.ray_address)
    task = request.read_task()
    if not request.quiet:
        for twins in case_twins(task.labels):
            click.echo(f"slm-run: warning: labels {' and '.join(map(repr, twins))} differ in case only", err=True)
    output_format = request.output_format or "jsonl"
    output = Storage.at(_folder_address(request.output))
    selection = select_inputs(request.input, any_ending=request.input_format is not None)
    listed = selection.list_files()
    check_outside(selection, output, part_names(listed, output_format).values())
    model = _load_once(request, task, output_format, f"{selection.storage.root}/{selection.pattern or ''}")
    manifest = open_job(output, model.identity, listed, resume=request.resume, overwrite=request.overwrite)
    job = Job(
        request,
        selection.storage,
        manifest,
        part_names(manifest.files, output_format),
        len({file.name for file in listed} - {file.name for file in manifest.files}),
        model,
        time.perf_counter() - started,
    )
    return job.run()


@dataclass(frozen=True)
class Model:
    """What the machine that starts a job knows of the model; it labels nothing itself. `record` describes the run."""

    bundle: str
    digest: str
    task: Task
    identity: Identity
    record: dict[str, Any]
    rule: str


def _folder_address(address: str) -> str:
    ending = PurePosixPath(address.rstrip("/")).suffix.lower()
    if ending in FORMATS:
        raise OutputError(
            f"{address}: --engine ray writes a folder of parts, one per input file; give a name without {ending}, and "
            f"--output-format {FORMATS[ending]}"
        )
    if "://" in address and "/" not in address.partition("://")[2].strip("/"):
        raise OutputError(f"{address}: expected a folder below it, such as {address.rstrip('/')}/labels")
    return address


def _load_once(request: ClassifyRequest, task: Task, output_format: str, source: str) -> Model:
    """Load the bundle here, so that whatever is wrong with it or the task shows before the cluster is asked.

    Leaves the weights in this machine's layout for the workers, which then share them.
    """
    classifier = Classifier.load(
        request.bundle, provider=request.provider, threads=request.threads, precision=request.worker_precision
    )
    runner = classifier.prepare(task, request.options())
    identity = configuration(classifier, runner) | request.reading()
    identity |= {
        "input": source,
        "output format": output_format,
        "spreadsheet-safe cells": str(request.spreadsheet_safe),
    }
    record = describe_run(classifier, runner, flags=_flags(request), identity=identity, timings={}, timeline=[])
    bundle, rule, num_threads, graphs = classifier.bundle, runner.rule, classifier.num_threads, classifier.open_graphs
    del classifier, runner  # their session's memory is needed for the copy
    for graph in graphs:
        keep_prepacked(bundle.folder, bundle.manifest, graph, num_threads=num_threads)
    folder = str(find_bundle(request.bundle).absolute())
    return Model(folder, bundle.manifest.digest, task, identity, record, rule)


def _flags(request: ClassifyRequest) -> dict[str, Any]:
    from slm_runtime.ray_engine.storage import redacted

    return vars(request) | {"input": redacted(request.input), "output": redacted(request.output)}
