"""What goes on beside the scoring of a run: journal, progress, interruption, and what the user should be told."""

import time
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from slm_runtime.classifier import TaskRunner
from slm_runtime.interruption import Interruption
from slm_runtime.journal import Journal
from slm_runtime.options import RunCounts
from slm_runtime.progress import Progress
from slm_runtime.records import Prediction, Ticket

LOW_LABEL_MASS = 0.05
# So large a share of one label is suspicious from so many rows on.
ONE_SIDED_SHARE, ONE_SIDED_ROWS = 0.95, 20
# Ids are compared by eight bytes of hash each, for so many rows: 80 MB.
COMPARED_IDS = 10_000_000


class RunWatch:
    """Tickets pass it on their way in, predictions when they are made and again when they leave in order.

    `interruption` None: the work in hand is finished first.
    """

    def __init__(self, progress: Progress, journal: Journal | None, interruption: Interruption | None) -> None:
        self._progress = progress
        self._journal = journal
        self._interruption = interruption
        self._started = time.perf_counter()
        self._inside: dict[int, Ticket] = {}
        self._low_mass = 0
        self._id_hashes = array("q")

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started

    @property
    def timeline(self) -> list[tuple[float, int]]:
        """(seconds, rows) finished so far, at most some hundreds of points."""
        return self._progress.timeline

    def entering(self, windows: Iterable[Sequence[Ticket]]) -> Iterator[Sequence[Ticket]]:
        """The windows, remembered until their predictions leave."""
        for window in windows:
            self._inside.update((ticket.row, ticket) for ticket in window)
            yield window

    def recall(self, window: Sequence[Ticket]) -> dict[int, Prediction]:
        """What an earlier, interrupted run knows about this window."""
        if self._journal is None:
            return {}
        known = self._journal.recall(window)
        self._progress.recalled([ticket for ticket in window if ticket.row in known])
        return known

    def finished(self, predictions: Sequence[Prediction]) -> None:
        """Record predictions that were made together.

        Raises:
            KeyboardInterrupt: the run was asked to stop.
            OutputError: the journal cannot be written.
        """
        if self._journal is not None:
            self._journal.record(predictions)
        self._progress.finished([self._inside[p.row] for p in predictions], predictions)
        if self._interruption is not None:
            self._interruption.check()

    def leaving(self, predictions: Sequence[Prediction]) -> Iterator[tuple[Ticket, Prediction]]:
        """Each prediction with its ticket, which is forgotten."""
        for prediction in predictions:
            self._low_mass += has_low_mass(prediction)
            if prediction.id is not None and len(self._id_hashes) < COMPARED_IDS:
                self._id_hashes.append(hash(prediction.id))
            yield self._inside.pop(prediction.row), prediction

    def warnings(self, runner: TaskRunner) -> Iterator[str]:
        """Doubled ids, and signs that the task does not fit the model."""
        if doubled := len(self._id_hashes) - len(np.unique(np.asarray(self._id_hashes))):
            yield f"{doubled} rows have an id that an earlier row has; `row` tells them apart"
        yield from misfits(runner.counts, self._low_mass, len(runner.task.labels))

    def close(self) -> None:
        """End the progress bar."""
        self._progress.close()


def has_low_mass(prediction: Prediction) -> bool:
    """True where the labels hold next to nothing of the model's answer."""
    return prediction.label_mass is not None and prediction.label_mass < LOW_LABEL_MASS


def misfits(counts: RunCounts, num_low_mass: int, num_labels: int) -> Iterator[str]:
    """Signs that the task does not fit the model; `num_low_mass` rows are those of `has_low_mass`."""
    if counts.rows and num_low_mass > counts.rows / 2:
        yield f"on {num_low_mass} rows the labels hold under {LOW_LABEL_MASS:.0%} of the model's answer"
    labelled = sum(counts.labels.values())
    if labelled >= ONE_SIDED_ROWS and num_labels > 1:
        label, number = max(counts.labels.items(), key=lambda item: item[1])
        if number > ONE_SIDED_SHARE * labelled:
            yield (
                f"{number} of {labelled} labelled rows are {label!r}; look at the prompt with --explain, "
                "or describe the labels in a task file"
            )
