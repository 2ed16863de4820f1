"""What the worker does when scoring goes wrong: with one text, with all of them, or after everybody has left."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from slm_runtime.options import RunCounts, RunOptions
from slm_runtime.records import Prediction, Ticket
from slm_runtime.serve.backlog import Backlog
from slm_runtime.serve.calls import Call
from slm_runtime.serve.metrics import Metrics
from slm_runtime.serve.problems import RequestError
from slm_runtime.serve.settings import ServeSettings
from slm_runtime.serve.worker import Phase, Worker
from slm_runtime.task import Task

TASK = Task(("a", "b"))
SETTINGS = ServeSettings(
    batch_tokens=1000, max_batch=10, max_wait_s=0.05, max_queue=10, max_body_bytes=1, max_texts=1, deadline_s=1
)


class Runner:
    """Scores every text, but for some words."""

    def __init__(self) -> None:
        self.counts = RunCounts()
        self.rule = "first-token"

    def run(self, tickets: Sequence[Ticket]) -> Iterator[Prediction]:
        for ticket in tickets:
            if ticket.text == "poison":
                raise ValueError(ticket.text)
            if ticket.text == "the end":
                raise SystemExit
            if ticket.text == "slow":
                time.sleep(0.5)
            yield Prediction(ticket.row, ticket.id, label="a", score=1.0)


def make_worker(backlog: Backlog) -> Worker:
    manifest = SimpleNamespace(model=SimpleNamespace(id="fake"))
    classifier = SimpleNamespace(bundle=SimpleNamespace(manifest=manifest), prepare=lambda task, options: Runner())
    loop = asyncio.get_running_loop()
    return Worker(lambda: classifier, TASK, RunOptions(), backlog, Metrics(), loop, lambda message: None)


def call(*texts: str) -> Call:
    return Call(TASK, [Ticket(row, None, text) for row, text in enumerate(texts)], time.monotonic())


def with_worker(test: Callable[[Backlog, Worker], Awaitable[None]]) -> Worker:
    """The worker, ended, after `test` on a loop of its own."""

    async def run() -> Worker:
        backlog = Backlog(SETTINGS, 1000)
        worker = make_worker(backlog)
        worker.start()
        await test(backlog, worker)
        backlog.close()
        return worker

    worker = asyncio.run(run())
    worker.join()
    return worker


def test_a_text_that_breaks_the_scoring_takes_no_other_down() -> None:
    async def test(backlog: Backlog, worker: Worker) -> None:
        good, bad, also_good = call("one", "two"), call("poison"), call("three")
        for each in (good, bad, also_good):
            backlog.offer(each)
        assert [prediction.label for prediction in await good.answer] == ["a", "a"]
        assert (await also_good.answer)[0].label == "a"
        with pytest.raises(ValueError, match="poison"):
            await bad.answer

    worker = with_worker(test)
    assert (worker.phase, worker.failure) == (Phase.READY, None)


def test_a_worker_that_ends_answers_everybody_at_once() -> None:
    async def test(backlog: Backlog, worker: Worker) -> None:
        first, second = call("the end"), call("waiting")
        backlog.offer(first)
        backlog.offer(second)
        for each in (first, second):
            with pytest.raises(RequestError) as caught:
                await asyncio.wait_for(each.answer, 30)
            assert caught.value.status == 500

    worker = with_worker(test)
    assert worker.phase is Phase.FAILED
    assert isinstance(worker.failure, SystemExit)


def test_a_batch_that_ends_after_its_clients_have_left_is_no_failure() -> None:
    async def test(backlog: Backlog, worker: Worker) -> None:
        backlog.offer(call("slow"))
        await asyncio.sleep(0.2)  # it is taken now, and the loop ends before it is scored

    worker = with_worker(test)
    assert worker.failure is None
