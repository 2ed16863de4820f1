"""Texts that wait for the model: bounded, shared out fairly, and gone when nobody waits for them any more."""

import threading
import time
from collections import deque
from dataclasses import dataclass

from slm_runtime.records import Ticket
from slm_runtime.serve.budget import BatchBudget
from slm_runtime.serve.calls import Call
from slm_runtime.serve.settings import ServeSettings


@dataclass(frozen=True)
class Taken:
    """A ticket that is scored now, and the call that waits for it."""

    call: Call
    ticket: Ticket


class BacklogFullError(Exception):
    """The texts of a call do not fit into the queue now."""


class Backlog:
    """The event loop offers calls, one worker gathers batches. All texts of a batch have the same task.

    Calls take turns, one text each, so that a large request holds a small one for a batch at most.
    """

    def __init__(self, settings: ServeSettings, longest_text_tokens: int) -> None:
        self._settings = settings
        self._longest_text_tokens = longest_text_tokens
        self._calls: deque[Call] = deque()
        self._num_texts = 0
        self._hurried = False
        self._closed = False
        self._ended = False
        self._changed = threading.Condition()

    @property
    def num_texts(self) -> int:
        """How many texts wait."""
        return self._num_texts

    def offer(self, call: Call) -> None:
        """Let the texts of `call` wait. Raises BacklogFullError when there is no room for all of them."""
        with self._changed:
            if self._ended or self._num_texts + call.num_untaken > self._settings.max_queue:
                raise BacklogFullError
            self._calls.append(call)
            self._num_texts += call.num_untaken
            self._changed.notify()

    def abandon(self, call: Call) -> int:
        """Drop the texts of `call` that still wait; how many there were."""
        with self._changed:
            if call not in self._calls:
                return 0
            self._calls.remove(call)
            dropped = call.drop()
            self._num_texts -= dropped
            return dropped

    def hurry(self) -> None:
        """From now on no text waits for company."""
        with self._changed:
            self._hurried = True
            self._changed.notify()

    def close(self) -> None:
        """Nothing comes any more: `gather` ends with what waits."""
        with self._changed:
            self._hurried = self._closed = True
            self._changed.notify()

    def end(self) -> list[Call]:
        """Take nothing any more; the calls that waited, for which nothing will be done."""
        with self._changed:
            self._ended = self._closed = True
            waiting = list(self._calls)
            self._calls.clear()
            self._num_texts = 0
            return waiting

    def gather(self) -> list[Taken]:
        """The next batch, as soon as it is full or its first text has waited long enough; empty after the last one."""
        with self._changed:
            while self._calls or not self._closed:
                wait_s = self._wait_s()
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                else:
                    return self._take()
            return []

    def _wait_s(self) -> float | None:
        """How long the next batch should wait for company; None when nothing is there to wait with."""
        if not self._calls:
            return None
        if self._hurried or self._num_texts >= self._settings.max_batch:
            return 0.0
        return min(call.arrived for call in self._calls) + self._settings.max_wait_s - time.monotonic()

    def _take(self) -> list[Taken]:
        task = self._calls[0].task
        budget = BatchBudget(self._settings.batch_tokens, self._settings.max_batch, self._longest_text_tokens)
        others = [call for call in self._calls if call.task != task]
        turns = deque(call for call in self._calls if call.task == task)
        taken: list[Taken] = []
        while turns and budget.admits(turns[0].next_text):
            call = turns.popleft()
            taken.append(Taken(call, call.take()))
            if call.num_untaken:
                turns.append(call)
        self._num_texts -= len(taken)
        self._calls = deque([*others, *turns])  # whose turn is next comes first
        return taken
