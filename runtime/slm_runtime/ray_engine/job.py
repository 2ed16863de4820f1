"""One job, from a list of inputs to a folder of parts, or to one that can be continued."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import click

from slm_runtime.classify_request import ClassifyRequest
from slm_runtime.command import ALL_LABELLED, SOME_FAILED
from slm_runtime.errors import InterruptedRunError, OutputError, SlmError
from slm_runtime.interruption import RaiseOnSignal
from slm_runtime.ray_engine.blocks import BlockSize
from slm_runtime.ray_engine.cluster import cluster
from slm_runtime.ray_engine.job_manifest import JobManifest
from slm_runtime.ray_engine.job_outcome import JobOutcome
from slm_runtime.ray_engine.job_progress import JobProgress
from slm_runtime.ray_engine.parts import PartError, write_parts
from slm_runtime.ray_engine.pipeline import labelled_blocks
from slm_runtime.ray_engine.reading import BlockReader
from slm_runtime.ray_engine.storage import Storage
from slm_runtime.ray_engine.worker import WorkerSetup
from slm_runtime.run_watch import misfits

if TYPE_CHECKING:
    from slm_runtime.ray_engine.command import Model

# A worker of one thread wastes nothing on keeping threads in step, and shares its weights with its neighbours.
DEFAULT_THREADS = 1


@dataclass(frozen=True)
class Job:
    """`parts` are the parts' names by input name; `num_added` files came after the list of inputs was taken."""

    request: ClassifyRequest
    source: Storage
    manifest: JobManifest
    parts: dict[str, str]
    num_added: int
    model: "Model"
    load_s: float

    def run(self) -> int:
        """Exit code 0 when every row has a label, 1 when some rows or files failed.

        Raises:
            InterruptedRunError: Ctrl-C or SIGTERM; says what is kept.
            OutputError: a part cannot be written.
            ClusterError: the cluster cannot be reached, or failed.
        """
        self._tell_resumed()
        ahead = self._ahead()
        if not ahead:
            self._say(f"{self.manifest.output.root}: complete already, nothing to do")
            return SOME_FAILED if self.manifest.counts.errors else ALL_LABELLED
        with ExitStack() as stack:
            record = stack.enter_context(self._open_record())  # with its lock, before the manifest is touched
            threads = self.request.threads or DEFAULT_THREADS
            address = self.request.ray_address
            num_workers = stack.enter_context(cluster(address, num_workers=self.request.concurrency, threads=threads))
            stack.enter_context(RaiseOnSignal())  # Ray has put its own handler there
            self.manifest.save()
            progress = stack.enter_context(closing(JobProgress(len(ahead), hidden=self.request.quiet)))
            with self._kept():
                failed = self._label(ahead, num_workers, threads, progress)
            self.manifest.remove_left_over(list(self.manifest.parts))
            self.manifest.save()
            progress.close()
            self._conclude(record, JobOutcome(self.manifest, failed, progress, num_workers, threads))
        return SOME_FAILED if failed or self.manifest.counts.errors else ALL_LABELLED

    def _ahead(self) -> list[tuple[int, str]]:
        """Number and name of the inputs that have no part yet."""
        files = enumerate(self.manifest.files)
        return [(number, file.name) for number, file in files if self.parts[file.name] not in self.manifest.parts]

    def _label(
        self, ahead: list[tuple[int, str]], num_workers: int, threads: int, progress: JobProgress
    ) -> dict[str, str]:
        """Write the parts of the inputs ahead; returns why inputs have none."""
        files = self.manifest.files
        num_bytes = sum(files[number].size_bytes for number, _ in ahead)
        reader = self._reader(BlockSize.of_job(num_bytes, num_workers))
        failed = {name: "none of its rows came back" for _, name in ahead}
        parts = [self.parts[file.name] for file in files]
        with closing(labelled_blocks(ahead, reader, self._setup(threads), num_workers=num_workers)) as blocks:
            results = write_parts(blocks, self.manifest.output, parts, self._output_format, progress.arrived)
            for number, part in results:
                file = files[number]
                if isinstance(part, PartError):
                    failed[file.name] = str(part)
                else:
                    del failed[file.name]
                    self.manifest.complete(parts[number], file, part)
                progress.file_done()
        return failed

    @property
    def _output_format(self) -> str:
        return self.request.output_format or "jsonl"

    def _reader(self, size: BlockSize) -> BlockReader:
        request = self.request
        return BlockReader(
            self.source,
            size,
            request.text_column,
            request.id_column,
            request.input_format,
            request.encoding,
            request.delimiter,
            all_columns=self._output_format in ("csv", "tsv"),
        )

    def _setup(self, threads: int) -> WorkerSetup:
        request, model = self.request, self.model
        return WorkerSetup(
            model.bundle,
            model.digest,
            request.provider,
            request.worker_precision,
            threads,
            model.task,
            request.options(),
            self._output_format,
            request.spreadsheet_safe,
        )

    @contextmanager
    def _open_record(self) -> Iterator[IO[bytes]]:
        output = self.manifest.output
        with output.parent.whole_file(f"{output.root.rpartition('/')[2]}.run.json") as stream:
            yield stream

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Whatever ends the job, the manifest knows the parts that are complete."""
        try:
            yield
        except (KeyboardInterrupt, SlmError) as error:
            with suppress(OutputError):  # the error that is on its way says more
                self.manifest.save()
            if isinstance(error, SlmError):
                raise type(error)(self._go_on(str(error))) from error
            raise InterruptedRunError(self._go_on("interrupted")) from None

    def _go_on(self, what: str) -> str:
        done, all_parts = len(self.manifest.parts), len(self.manifest.files)
        return f"{what}: {done} of {all_parts} parts are in {self.manifest.output.root}; go on with --resume"

    def _tell_resumed(self) -> None:
        if self.manifest.parts:
            self._say(f"resuming: {len(self.manifest.parts)} of {len(self.manifest.files)} parts are complete already")
        if self.num_added:
            self._say(f"{self.num_added} files came after this run was started and are not part of it")

    def _conclude(self, record: IO[bytes], outcome: JobOutcome) -> None:
        """Failures, warnings, summary and the record."""
        for name, reason in outcome.failed.items():
            click.echo(f"slm-run: {reason if name in reason else f'{name}: {reason}'}", err=True)
        manifest = self.manifest
        for warning in misfits(manifest.counts, manifest.num_low_mass, len(self.model.task.labels)):
            self._say(f"warning: {warning}")
        facts = self.model.record | outcome.describe() | {"timings": outcome.timings(self.load_s)}
        record.write((json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
        self._say(outcome.summary(self.model.rule))

    def _say(self, message: str) -> None:
        if not self.request.quiet:
            click.echo(f"slm-run: {message}", err=True)
