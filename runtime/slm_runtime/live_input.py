"""Tickets that arrive while the model works: short waits, and never a read that cannot be ended."""

import io
import queue
import select
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, BinaryIO

from slm_runtime.records import Ticket

# A window is closed when nothing has come for so long, or when its first ticket has waited for so long.
IDLE_S = 0.2
LONGEST_WAIT_S = 1.0
# Windows of a fast stream start small, so that the first labels come soon, and double up to the last size.
FIRST_WINDOW = 64
LIVE_WINDOW = 1024
POLL_S = 0.1


class PollingInput(io.RawIOBase):
    """A pipe or terminal that is read only when it has something, so that `stop` always ends the reading."""

    def __init__(self, stream: BinaryIO, *, owns_stream: bool) -> None:
        super().__init__()
        self._stream = stream
        self._raw: Any = getattr(stream, "raw", stream)
        self._owns_stream = owns_stream
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End of input, now."""
        self._stopped.set()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._stopped.is_set():
            if _has_something(self._raw):
                return self._raw.readinto(buffer) or 0
        return 0

    def close(self) -> None:
        """Close the pipe; standard input stays open."""
        if self._owns_stream:
            self._stream.close()
        super().close()


def _has_something(stream: Any) -> bool:
    try:
        return bool(select.select([stream], [], [], POLL_S)[0])
    except (OSError, ValueError):  # not a file that can wait: read it
        return True


def live_windows(
    tickets: Iterable[Ticket], size: int, *, check: Callable[[], None], stop: Callable[[], None]
) -> Generator[list[Ticket], None, None]:
    """Windows of at most `size` tickets, read ahead by a thread and closed after a short wait.

    `check` is called between windows and while nothing comes, and may raise; so do errors of the reading, after the
    tickets before them.
    `stop` must make the reading end; it is called when the generator is closed.
    """
    arrived: queue.Queue[Ticket | None] = queue.Queue(maxsize=size)
    problems: list[Exception] = []

    def read_ahead() -> None:
        try:
            for ticket in tickets:
                arrived.put(ticket)
        except Exception as error:  # noqa: BLE001 - raised again by the consumer
            problems.append(error)
        arrived.put(None)

    thread = threading.Thread(target=read_ahead, name="read ahead", daemon=True)
    thread.start()
    try:
        capacity, ended = min(FIRST_WINDOW, size), False
        while not ended:
            window, ended = _gather(arrived, capacity, check)
            capacity = min(2 * capacity, size) if len(window) == capacity else min(FIRST_WINDOW, size)
            if window:
                yield window
        if problems:
            raise problems[0]
    finally:
        stop()
        while thread.is_alive():
            with suppress(queue.Empty):
                arrived.get(timeout=POLL_S)


def _gather(
    arrived: "queue.Queue[Ticket | None]", capacity: int, check: Callable[[], None]
) -> tuple[list[Ticket], bool]:
    """The next window, and whether the input has ended."""
    check()
    window: list[Ticket] = []
    deadline = 0.0
    while len(window) < capacity:
        try:
            wait = min(IDLE_S, deadline - time.monotonic()) if window else POLL_S
            ticket = arrived.get(timeout=max(wait, 0.0)) if wait > 0 else arrived.get_nowait()
        except queue.Empty:
            if window:
                return window, False
            check()
            continue
        if ticket is None:
            return window, True
        deadline = deadline if window else time.monotonic() + LONGEST_WAIT_S
        window.append(ticket)
    return window, False
