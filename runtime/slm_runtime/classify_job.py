"""One run of `slm-run classify`, from an opened input to a complete output, or to one that can be continued."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass

from slm_runtime.classifier import Classifier, TaskRunner, windows
from slm_runtime.classify_request import ClassifyRequest
from slm_runtime.command import ALL_LABELLED, SOME_FAILED
from slm_runtime.errors import InterruptedRunError, OutputError
from slm_runtime.interruption import Interruption
from slm_runtime.journal import Journal
from slm_runtime.live_input import LIVE_WINDOW, live_windows
from slm_runtime.machine import peak_memory_bytes
from slm_runtime.progress import Progress
from slm_runtime.readers import TicketReader
from slm_runtime.records import Ticket
from slm_runtime.resumable import Destination
from slm_runtime.run_identity import Identity, run_identity
from slm_runtime.run_record import describe_run, read_record, write_record
from slm_runtime.run_watch import RunWatch
from slm_runtime.survey import Survey
from slm_runtime.writers import PredictionWriter, is_regular, open_output


@dataclass(frozen=True)
class Job:
    """One run from an opened input to a complete output. `survey` is None for a live input."""

    request: ClassifyRequest
    destination: Destination
    reader: TicketReader
    survey: Survey | None
    classifier: Classifier
    runner: TaskRunner
    say: Callable[[str], None]
    load_s: float

    def run(self, tickets: Iterator[Ticket]) -> int:
        """Exit code 0 when every row has a label, 1 when some failed.

        Raises:
            InterruptedRunError: Ctrl-C or SIGTERM; says what is kept.
        """
        identity = self._identity()
        if identity is not None and self.destination.is_complete(identity):
            self.say(f"{self.destination.output}: complete already, nothing to do")
            counts = read_record(self.destination.output).get("counts", {})
            return SOME_FAILED if counts.get("errors") else ALL_LABELLED
        with ExitStack() as stack:
            interruption = stack.enter_context(Interruption())
            writer = stack.enter_context(self._open_output())  # with its lock, before the journal is touched
            journal = None if identity is None else stack.enter_context(self.destination.open_journal(identity))
            self._tell_resumed(journal)
            watch = stack.enter_context(closing(self._watch(journal, interruption)))
            try:
                self._write_all(tickets, writer, watch, interruption)
                interrupted = False
            except KeyboardInterrupt:
                if not self.reader.is_live:
                    raise InterruptedRunError(self._kept("interrupted", journal)) from None
                interrupted = True  # what came out of the stream is whole up to here
            except OutputError as error:
                raise OutputError(self._kept(str(error), journal)) from error
            self._conclude(watch, identity)
        if journal is not None:
            journal.discard()
        if interrupted:
            raise InterruptedRunError(
                f"interrupted: {self.runner.counts.rows} rows are in {self.request.output}, "
                "the rest of the input was not read"
            )
        return SOME_FAILED if self.runner.counts.errors else ALL_LABELLED

    def _identity(self) -> Identity | None:
        """What another run must share to continue this one; None where that is not possible."""
        if self.survey is None or not self.destination.keeps_journal:
            return None
        return run_identity(self.classifier, self.runner, self.survey, self.request.reading())

    def _tell_resumed(self, journal: Journal | None) -> None:
        if journal is None or not (journal.num_rows or journal.num_lost_bytes):
            return
        lost = f"; {journal.num_lost_bytes} bytes of a torn record were cut off" if journal.num_lost_bytes else ""
        self.say(f"resuming: {journal.num_rows} rows are done already{lost}")

    def _open_output(self) -> AbstractContextManager[PredictionWriter]:
        return open_output(
            self.request.output,
            columns=self.reader.columns,
            overwrite=self.request.overwrite or self.request.resume,
            spreadsheet_safe=self.request.spreadsheet_safe,
        )

    def _watch(self, journal: Journal | None, interruption: Interruption) -> RunWatch:
        ahead = (None, None) if self.survey is None else (self.survey.num_rows, self.survey.num_chars)
        hidden = self.request.quiet or not sys.stderr.isatty()
        return RunWatch(Progress(*ahead, hidden=hidden), journal, None if self.reader.is_live else interruption)

    def _write_all(
        self, tickets: Iterator[Ticket], writer: PredictionWriter, watch: RunWatch, interruption: Interruption
    ) -> None:
        """Windows in, windows out; after each one its records are handed to the operating system."""
        if self.reader.is_live:
            source = live_windows(tickets, LIVE_WINDOW, check=interruption.check, stop=self.reader.stop)
        else:
            source = windows(tickets, self.runner.options.window)
        with closing(source):
            for predictions in self.runner.run_windows(watch.entering(source), watch.finished, watch.recall):
                for ticket, prediction in watch.leaving(predictions):
                    writer.write(ticket, prediction)
                writer.flush()

    def _conclude(self, watch: RunWatch, identity: Identity | None) -> None:
        """Warnings, summary and the record, before the output gets its name."""
        watch.close()
        counts = self.runner.counts
        run_s = watch.elapsed_s
        for warning in watch.warnings(self.runner):
            self.say(f"warning: {warning}")
        if is_regular(self.destination.output):
            timings = {"load_s": self.load_s, "run_s": run_s, "model_s": counts.model_s}
            record = describe_run(
                self.classifier,
                self.runner,
                flags=vars(self.request),
                identity=identity,
                timings=timings,
                timeline=watch.timeline,
            )
            record |= {"blank_lines": self.reader.num_blank, "replaced_characters": self.reader.num_replaced}
            record["input"] = self.survey and {"sha256": self.survey.sha256, "size_bytes": self.survey.size_bytes}
            write_record(self.destination.output, record)
        self.say(self._summary(run_s))

    def _summary(self, run_s: float) -> str:
        counts = self.runner.counts
        rate = (counts.rows - counts.recalled) / run_s if run_s else 0.0
        facts: Sequence[tuple[int, str]] = (
            (counts.changed, "int8 labels overruled"),
            (counts.recalled, "resumed"),
            (self.reader.num_blank, "blank lines skipped"),
            (self.reader.num_replaced, "texts with broken characters replaced"),
        )
        more = "".join(f", {number} {what}" for number, what in facts if number)
        return (
            f"{counts.rows} rows in {run_s:.1f} s ({rate:.1f} rows/s, {self.runner.rule} scoring): "
            f"{counts.errors} errors, {counts.truncated} truncated, {counts.duplicates} duplicates, "
            f"{counts.rechecked} re-checked{more}; {counts.processed_tokens} of {counts.prompt_tokens} prompt tokens "
            f"processed (prefix saved {counts.prefix_saved_tokens}, shared beginnings {counts.tree_saved_tokens}), "
            f"{counts.padding_share:.1%} padding; peak memory {peak_memory_bytes() / 1e6:.0f} MB"
        )

    def _kept(self, what: str, journal: Journal | None) -> str:
        """`what`, and how to go on where something is kept."""
        if journal is None or not journal.num_rows:
            return what
        total = "" if self.survey is None else f" of {self.survey.num_rows}"
        return f"{what}: {journal.num_rows}{total} rows are kept in {journal.path}; go on with --resume"
