"""Who is scored when, without a model: turns, limits, deadlines, the end."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from slm_runtime.records import Prediction, Ticket
from slm_runtime.serve.backlog import Backlog, BacklogFullError, Taken
from slm_runtime.serve.calls import Call
from slm_runtime.serve.settings import ServeSettings
from slm_runtime.task import Task

TASK, OTHER_TASK = Task(("a", "b")), Task(("c", "d"))


def backlog(**changes: float) -> Backlog:
    values = {"batch_tokens": 10_000, "max_batch": 100, "max_wait_s": 0.0, "max_queue": 100, "max_body_bytes": 1}
    values |= {"max_texts": 1, "deadline_s": 1.0}
    return Backlog(ServeSettings(**{**values, **changes}), 1000)


def call(name: str, num_texts: int, task: Task = TASK) -> Call:
    tickets = [Ticket(row, name, f"{name} {row}") for row in range(num_texts)]
    return Call(task, tickets, time.monotonic())


def names(batch: list[Taken]) -> list[str]:
    return [taken.ticket.text or "" for taken in batch]


def on_a_loop(test: Callable[[], None]) -> None:
    """Calls have a future, so they are made where a loop runs."""

    async def run() -> None:
        test()

    asyncio.run(run())


def test_calls_take_turns_across_batches() -> None:
    def test() -> None:
        waiting = backlog(max_batch=4)
        for name, size in (("large", 6), ("small", 1), ("pair", 2)):
            waiting.offer(call(name, size))
        assert names(waiting.gather()) == ["large 0", "small 0", "pair 0", "large 1"]
        waiting.offer(call("late", 1))
        assert names(waiting.gather()) == ["pair 1", "large 2", "late 0", "large 3"]
        assert names(waiting.gather()) == ["large 4", "large 5"]
        assert waiting.num_texts == 0

    on_a_loop(test)


def test_a_batch_has_one_task() -> None:
    def test() -> None:
        waiting = backlog()
        for name, task in (("one", TASK), ("other", OTHER_TASK), ("same", Task(("a", "b")))):
            waiting.offer(call(name, 1, task))
        assert names(waiting.gather()) == ["one 0", "same 0"]
        assert names(waiting.gather()) == ["other 0"]

    on_a_loop(test)


def test_what_does_not_fit_is_refused_whole() -> None:
    def test() -> None:
        waiting = backlog(max_queue=5)
        waiting.offer(call("first", 3))
        with pytest.raises(BacklogFullError):
            waiting.offer(call("second", 3))
        waiting.offer(call("third", 2))
        assert waiting.num_texts == 5

    on_a_loop(test)


def test_abandoned_texts_are_gone_and_make_room() -> None:
    def test() -> None:
        waiting = backlog(max_batch=2)
        first, second = call("first", 4), call("second", 1)
        waiting.offer(first)
        waiting.offer(second)
        waiting.gather()
        assert waiting.abandon(first) == 3
        assert waiting.abandon(first) == 0
        assert waiting.num_texts == 0
        waiting.close()
        assert waiting.gather() == []

    on_a_loop(test)


def test_a_text_waits_for_company_but_not_longer() -> None:
    def test() -> None:
        waiting = backlog(max_wait_s=0.3)
        started = time.monotonic()
        waiting.offer(call("first", 1))
        threading.Timer(0.1, waiting.offer, [call("second", 1)]).start()
        assert names(waiting.gather()) == ["first 0", "second 0"]
        assert time.monotonic() - started >= 0.29

    on_a_loop(test)


def test_a_full_batch_waits_for_nobody() -> None:
    def test() -> None:
        waiting = backlog(max_wait_s=3600, max_batch=3)
        waiting.offer(call("first", 2))
        waiting.offer(call("second", 2))
        assert len(waiting.gather()) == 3

    on_a_loop(test)


@pytest.mark.parametrize("end", ["hurry", "close"])
def test_the_end_hands_out_what_waits(end: str) -> None:
    def test() -> None:
        waiting = backlog(max_wait_s=3600)
        waiting.offer(call("first", 1))
        threading.Timer(0.05, getattr(waiting, end)).start()
        assert names(waiting.gather()) == ["first 0"]
        waiting.close()
        assert waiting.gather() == []

    on_a_loop(test)


def test_an_answer_is_complete_and_in_order() -> None:
    def test() -> None:
        asked = call("first", 3)
        for row in (2, 0, 1):
            assert not asked.answer.done()
            asked.note(Prediction(row, None))
        assert [prediction.row for prediction in asked.answer.result()] == [0, 1, 2]

    on_a_loop(test)
