"""The one thread that uses the model: it loads it, warms it up, and scores one batch after the other."""

import asyncio
import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

from slm_runtime.classifier import Classifier, TaskRunner
from slm_runtime.errors import SlmError
from slm_runtime.options import RunOptions
from slm_runtime.records import Prediction, Ticket
from slm_runtime.serve.backlog import Backlog, Taken
from slm_runtime.serve.metrics import Metrics
from slm_runtime.serve.problems import RequestError
from slm_runtime.serve.runners import Runners
from slm_runtime.task import Task

WARM_UP_TEXTS = ("My card was charged twice.", "The app crashes when I press save, since this morning.")
WORKER_ENDED = RequestError(500, "internal_error", "the service has failed; its log says more")
# Weight of the newest batch in the running mean of the rate.
RATE_WEIGHT = 0.2


class Phase(Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Worker(threading.Thread):
    """Answers on `loop`, from which it must be started; ends when the backlog is closed and empty.

    `phase` is READY from the end of the warm-up on; after FAILED, `failure` says why.
    """

    def __init__(
        self,
        load: Callable[[], Classifier],
        task: Task,
        options: RunOptions,
        backlog: Backlog,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(name="model", daemon=True)
        self.phase = Phase.LOADING
        self.failure: BaseException | None = None
        self.texts_per_s = 0.0
        self.model = ""
        self._load = load
        self._task = task
        self._options = options
        self._backlog = backlog
        self._metrics = metrics
        self._loop = loop
        self._say = say

    def run(self) -> None:
        started = time.monotonic()
        try:
            runners = Runners(self._load(), self._task, self._options)
            self.model = runners.model
            main = runners.of(self._task)
            list(main.run(Ticket(row, None, text) for row, text in enumerate(WARM_UP_TEXTS)))
            self._set_phase(Phase.READY)
            self._say(f"ready after {time.monotonic() - started:.1f} s, {main.rule} scoring")
            while batch := self._backlog.gather():
                self._answer(runners, batch)
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            self.failure = error
            self._set_phase(Phase.FAILED)
            for call in self._backlog.end():
                self._post(call.fail, WORKER_ENDED)

    def _answer(self, runners: Runners, batch: Sequence[Taken]) -> None:
        try:
            self._score(runners.of(batch[0].call.task), batch)
        except SlmError as error:  # the task of a request does not fit the model
            self._fail(batch, error)
        except BaseException:
            self._fail(batch, WORKER_ENDED)
            raise

    def _fail(self, batch: Sequence[Taken], error: Exception) -> None:
        for taken in batch:
            self._post(taken.call.fail, error)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Call `function` on the event loop; where that has ended, nobody waits for an answer any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def drain(self) -> None:
        """Say that no new requests should come."""
        if self.phase is not Phase.FAILED:
            self._set_phase(Phase.DRAINING)

    def _set_phase(self, phase: Phase) -> None:
        # A worker that becomes ready while the service ends stays draining.
        if not (self.phase is Phase.DRAINING and phase is Phase.READY):
            self.phase = phase
            self._metrics.ready.set(phase is Phase.READY)

    def _score(self, runner: TaskRunner, batch: Sequence[Taken]) -> None:
        started = time.monotonic()
        processed = runner.counts.processed_tokens
        for taken in batch:
            self._metrics.queue_seconds.observe(started - taken.call.arrived)
        try:
            predictions = _predict(runner, batch)
        except Exception:  # noqa: BLE001 - one text must not take the others down with it
            traceback.print_exc()
            for taken in batch:
                self._score_alone(runner, taken)
        else:
            self._post(_deliver, batch, predictions)
            self._count(predictions)
        seconds = time.monotonic() - started
        self._metrics.batch_texts.observe(len(batch))
        self._metrics.batch_seconds.observe(seconds)
        self._metrics.processed_tokens.inc(runner.counts.processed_tokens - processed)
        rate = len(batch) / max(seconds, 1e-6)
        self.texts_per_s = (
            rate if not self.texts_per_s else (self.texts_per_s + RATE_WEIGHT * (rate - self.texts_per_s))
        )

    def _score_alone(self, runner: TaskRunner, taken: Taken) -> None:
        try:
            predictions = _predict(runner, [taken])
        except Exception as error:  # noqa: BLE001 - the request gets it
            self._fail([taken], error)
        else:
            self._post(_deliver, [taken], predictions)
            self._count(predictions)

    def _count(self, predictions: Sequence[Prediction]) -> None:
        metrics = self._metrics
        for prediction in predictions:
            metrics.texts.labels(_outcome(prediction)).inc()
            metrics.prompt_tokens.inc(prediction.num_tokens)
            metrics.rechecked.inc(prediction.rechecked)


def _predict(runner: TaskRunner, batch: Sequence[Taken]) -> list[Prediction]:
    """The predictions of a batch, each with the row that its request knows it by."""
    tickets = [dataclasses.replace(taken.ticket, row=number) for number, taken in enumerate(batch)]
    return [
        dataclasses.replace(prediction, row=taken.ticket.row)
        for taken, prediction in zip(batch, runner.run(tickets), strict=True)
    ]


def _deliver(batch: Sequence[Taken], predictions: Sequence[Prediction]) -> None:
    for taken, prediction in zip(batch, predictions, strict=True):
        taken.call.note(prediction)


def _outcome(prediction: Prediction) -> str:
    if prediction.error is not None:
        return "failed"
    return "below_threshold" if prediction.label is None else "labelled"
