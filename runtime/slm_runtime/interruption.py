"""Ctrl-C and friends: the first one asks, the second one insists."""

import signal
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interruption:
    """While open, the first signal only sets `requested`; another one raises KeyboardInterrupt where the program is.

    Signals that the process ignores stay ignored (nohup). Outside the main thread nothing is changed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was asked for."""
        if self.requested:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class RaiseOnSignal(Interruption):
    """While open, every signal raises KeyboardInterrupt at once, SIGTERM like Ctrl-C."""

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt
