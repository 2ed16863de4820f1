"""The second stage: an actor that holds the model and gives blocks of tickets their labels."""

import io
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass

from slm_runtime.bundle import find_bundle
from slm_runtime.classifier import Classifier, TaskRunner
from slm_runtime.errors import ArtifactError, SlmError
from slm_runtime.integrity import cache_folder, check_files
from slm_runtime.machine import peak_memory_bytes
from slm_runtime.manifest import read_manifest
from slm_runtime.options import RunCounts, RunOptions
from slm_runtime.precision import Precision, first_graph
from slm_runtime.prediction import failure
from slm_runtime.ray_engine.blocks import LabelledBlock, TicketBlock
from slm_runtime.ray_engine.counting import take
from slm_runtime.records import Prediction, Ticket
from slm_runtime.run_watch import has_low_mass
from slm_runtime.session import keep_prepacked
from slm_runtime.task import Task
from slm_runtime.writers import writing


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs. `bundle` is the same absolute path on every machine, `digest` that of its manifest."""

    bundle: str
    digest: str
    provider: str
    precision: Precision
    threads: int
    task: Task
    options: RunOptions
    output_format: str
    spreadsheet_safe: bool


class BlockLabeller:
    """The bundle, loaded once, and the task. A bundle that cannot be used here is the answer to every block."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._name = f"{platform.node()}:{os.getpid()}"
        self._runner: TaskRunner | SlmError
        try:
            self._runner = _load(setup)
        except SlmError as error:
            self._runner = error

    def label(self, block: TicketBlock) -> LabelledBlock:
        """The block with its labels; rows that cannot be labelled have an `error`."""
        if isinstance(self._runner, SlmError):
            return self._answer(block, b"", [], fatal=self._runner)
        try:
            predictions = label_rows(self._runner, block.tickets)
            content = encode(block, predictions, self._setup.output_format, safe=self._setup.spreadsheet_safe)
        except Exception as error:  # noqa: BLE001 - one file must not end a job of thousands
            take(self._runner.counts)
            return self._answer(block, b"", [], error=f"block {block.index}: {type(error).__name__}: {error}")
        return self._answer(block, content, predictions, counts=take(self._runner.counts))

    def _answer(
        self,
        block: TicketBlock,
        content: bytes,
        predictions: Sequence[Prediction],
        *,
        counts: RunCounts | None = None,
        error: str | None = None,
        fatal: SlmError | None = None,
    ) -> LabelledBlock:
        low_mass = sum(map(has_low_mass, predictions))
        return LabelledBlock(
            block.file,
            block.index,
            content,
            block.end,
            counts or RunCounts(),
            low_mass,
            self._name,
            peak_memory_bytes(),
            error,
            fatal,
        )


def label_rows(runner: TaskRunner, tickets: Sequence[Ticket]) -> list[Prediction]:
    """One prediction per ticket. Should the model fail on them together, each is tried alone.

    Raises the first failure when no ticket can be labelled even then: it is not the tickets' fault.
    """
    try:
        return list(runner.run(tickets))
    except Exception:
        predictions = [_alone(runner, ticket) for ticket in tickets]
        if all(prediction.error for prediction in predictions):
            raise
        return predictions


def _alone(runner: TaskRunner, ticket: Ticket) -> Prediction:
    try:
        return next(runner.run([ticket]))
    except Exception as error:  # noqa: BLE001 - one bad row must not end a job of millions
        return failure(ticket, f"cannot be scored: {type(error).__name__}: {error}")


def encode(block: TicketBlock, predictions: Sequence[Prediction], output_format: str, *, safe: bool) -> bytes:
    """The block's stretch of its part: lines, the header before the first block's, or a whole Parquet file."""
    pairs = list(zip(block.tickets, predictions, strict=True))
    content = _written(pairs, output_format, block.columns, safe=safe)
    if block.index == 0 or output_format == "parquet":
        return content
    return content[len(_written([], output_format, block.columns, safe=safe)) :]


def _written(
    pairs: Sequence[tuple[Ticket, Prediction]], output_format: str, columns: Sequence[str], *, safe: bool
) -> bytes:
    stream = io.BytesIO()
    with writing(nullcontext(stream), "a block", output_format, columns, spreadsheet_safe=safe) as writer:
        for ticket, prediction in pairs:
            writer.write(ticket, prediction)
        writer.flush()
    return stream.getvalue()


def _load(setup: WorkerSetup) -> TaskRunner:
    with _one_at_a_time():
        # The first worker on a machine hashes the files and lays out the weights; the others find both done.
        folder = find_bundle(setup.bundle)
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        keep_prepacked(folder, manifest, first_graph(folder, manifest, setup.precision), num_threads=setup.threads)
    classifier = Classifier.load(
        setup.bundle, provider=setup.provider, threads=setup.threads, precision=setup.precision
    )
    found = classifier.bundle.manifest.digest
    if found != setup.digest:
        raise ArtifactError(
            f"{setup.bundle}: on {platform.node()} it is the bundle {found[:16]}, where the job was started "
            f"{setup.digest[:16]}; copy the same bundle to every machine"
        )
    return classifier.prepare(setup.task, setup.options)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let the other workers on this machine wait, where its cache can be written and its files be locked."""
    with ExitStack() as stack:
        with suppress(OSError, ImportError):
            import fcntl

            cache_folder().mkdir(parents=True, exist_ok=True)
            stream = stack.enter_context((cache_folder() / "worker.lock").open("w"))
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
