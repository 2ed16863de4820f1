"""What a long run shows: one bar over rows, with a time left that knows that long tickets go first."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from slm_runtime.records import Prediction, Ticket

MAX_TIMELINE_POINTS = 200
# tqdm's own estimate counts rows; the longest go first, so it would promise too little for hours.
_KNOWN = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rows [{elapsed}, {rate_fmt}{postfix}]"
_UNKNOWN = "{n_fmt} rows [{elapsed}, {rate_fmt}]"


class Progress:
    """A bar on standard error, unless `hidden`, and the timeline of the run.

    `num_rows` and `num_chars` of text are ahead (None: nobody knows); the time left is that of the characters left.
    """

    def __init__(self, num_rows: int | None, num_chars: int | None, *, hidden: bool) -> None:
        self._started = time.perf_counter()
        self._chars_left = num_chars
        self._chars_done = 0
        self._rows = 0
        self._every = 1
        self._calls = 0
        self.timeline: list[tuple[float, int]] = []
        bar_format = _UNKNOWN if num_rows is None else _KNOWN
        self._bar: Any = tqdm(
            total=num_rows, unit="row", file=sys.stderr, disable=hidden, bar_format=bar_format, dynamic_ncols=True
        )

    def recalled(self, tickets: Sequence[Ticket]) -> None:
        """These rows were finished by an earlier run; they say nothing about the speed of this one."""
        if self._chars_left is not None:
            self._chars_left -= sum(len(ticket.text or "") for ticket in tickets)
        self._bar.update(len(tickets))

    def finished(self, tickets: Sequence[Ticket], predictions: Sequence[Prediction]) -> None:
        """These rows were finished now."""
        elapsed = time.perf_counter() - self._started
        self._rows += len(predictions)
        self._chars_done += sum(len(ticket.text or "") for ticket in tickets)
        self._note(elapsed)
        if self._chars_left is not None and self._chars_done:
            left = max(0, self._chars_left - self._chars_done)
            self._bar.set_postfix_str(f"{tqdm.format_interval(left * elapsed / self._chars_done)} left", refresh=False)
        self._bar.update(len(predictions))

    def _note(self, elapsed: float) -> None:
        """A point of the timeline; when there are too many, every other one goes."""
        self._calls += 1
        if self._calls % self._every == 0:
            self.timeline.append((round(elapsed, 3), self._rows))
        if len(self.timeline) > MAX_TIMELINE_POINTS:
            self.timeline = self.timeline[1::2]
            self._every *= 2

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
