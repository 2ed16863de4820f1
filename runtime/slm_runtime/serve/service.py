"""Between the requests and the worker: who may ask, who waits, and who has waited long enough."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from slm_runtime.classifier import Classifier
from slm_runtime.defaults import DEFAULT_TICKET_TOKENS
from slm_runtime.options import RunOptions
from slm_runtime.records import Prediction, Ticket
from slm_runtime.serve.backlog import Backlog, BacklogFullError
from slm_runtime.serve.calls import Call
from slm_runtime.serve.metrics import Metrics
from slm_runtime.serve.problems import ClientGoneError, RequestError
from slm_runtime.serve.settings import ServeSettings
from slm_runtime.serve.worker import Phase, Worker
from slm_runtime.task import Task

LONGEST_RETRY_S = 60


class Service:
    """One model, one task. Made on the event loop that its requests run on; `close` ends it."""

    def __init__(
        self,
        load: Callable[[], Classifier],
        task: Task,
        options: RunOptions,
        settings: ServeSettings,
        say: Callable[[str], None],
    ) -> None:
        self.task = task
        self.settings = settings
        self.metrics = Metrics()
        self._backlog = Backlog(settings, options.max_tokens or DEFAULT_TICKET_TOKENS)
        self.metrics.queue_texts.set_function(lambda: self._backlog.num_texts)
        loop = asyncio.get_running_loop()
        self._worker = Worker(load, task, options, self._backlog, self.metrics, loop, say)
        self._worker.start()

    @property
    def phase(self) -> Phase:
        return self._worker.phase

    @property
    def failure(self) -> BaseException | None:
        """What ended the worker, where that was no order."""
        return self._worker.failure

    @property
    def model(self) -> str:
        """The model's id; empty until it is loaded."""
        return self._worker.model

    def drain(self) -> None:
        """Readiness ends; what arrives on open connections is still answered."""
        self._worker.drain()
        self._backlog.hurry()

    def close(self) -> None:
        """End the worker when it has scored what waits."""
        self._backlog.close()
        self._worker.join()

    async def predict(
        self,
        asked: Sequence[tuple[Task, Sequence[Ticket]]],
        gone: Callable[[], Coroutine[Any, Any, None]],
        expires: float,
    ) -> list[list[Prediction]]:
        """The predictions of some tickets for each of some tasks, in their order. `gone` returns when the client has
        left.

        Raises:
            RequestError: 503 when the queue is full or the model not there, 504 at `expires`, by the loop's clock.
            ClientGoneError: the client left.
            SlmError: a task does not fit this model.
        """
        if self.phase in (Phase.LOADING, Phase.FAILED):
            raise RequestError(503, "not_ready", "the model is not loaded yet; try again", {"Retry-After": "1"})
        calls = [Call(task, tickets, time.monotonic()) for task, tickets in asked]
        answers = asyncio.gather(*(call.answer for call in calls))
        left = asyncio.create_task(gone())
        try:
            for call in calls:
                self._backlog.offer(call)
            waiting: set[asyncio.Future[Any]] = {answers, left}
            timeout = expires - asyncio.get_running_loop().time()
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if answers.done():
                return answers.result()
            if left.done():
                raise ClientGoneError
            message = f"no answer within {self.settings.deadline_s:g} s; what was not scored yet is dropped"
            raise RequestError(504, "deadline", message, {"Retry-After": self._retry_after()})
        except BacklogFullError as error:
            raise self._full() from error
        finally:
            left.cancel()
            answers.cancel()
            self.metrics.texts.labels("dropped").inc(sum(map(self._backlog.abandon, calls)))

    def _full(self) -> RequestError:
        message = f"the queue of {self.settings.max_queue} texts is full; try again later"
        return RequestError(503, "queue_full", message, {"Retry-After": self._retry_after()})

    def _retry_after(self) -> str:
        """Whole seconds until what waits now is likely to be done."""
        rate = self._worker.texts_per_s
        seconds = math.ceil(self._backlog.num_texts / rate) if rate else 1
        return str(min(max(seconds, 1), LONGEST_RETRY_S))
