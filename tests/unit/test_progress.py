"""The bar's time left counts characters, and the timeline stays small."""

import io
import sys
import time
from itertools import pairwise

import pytest

from slm_runtime.progress import MAX_TIMELINE_POINTS, Progress
from slm_runtime.records import Prediction, Ticket


def finish(progress: Progress, row: int, chars: int) -> None:
    progress.finished([Ticket(row, None, "x" * chars)], [Prediction(row, None)])


def test_the_time_left_is_that_of_the_characters_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 10.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    progress = Progress(num_rows=100, num_chars=1000, hidden=False)
    finish(progress, 0, 500)  # one row of a hundred, but half of the work
    progress.close()
    assert "00:10 left" in shown.getvalue()
    assert "1/100 rows" in shown.getvalue()


def test_rows_of_an_earlier_run_do_not_count_as_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 10.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    progress = Progress(num_rows=3, num_chars=300, hidden=False)
    progress.recalled([Ticket(0, None, "x" * 100)])
    finish(progress, 1, 100)
    progress.close()
    assert "00:10 left" in shown.getvalue()
    assert "2/3 rows" in shown.getvalue()


def test_a_hidden_bar_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(num_rows=1, num_chars=1, hidden=True)
    finish(progress, 0, 1)
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_the_timeline_keeps_its_ends_and_few_points() -> None:
    progress = Progress(num_rows=None, num_chars=None, hidden=True)
    for row in range(5000):
        finish(progress, row, 1)
    rows = [rows for _, rows in progress.timeline]
    assert len(rows) <= MAX_TIMELINE_POINTS
    assert rows == sorted(set(rows))
    assert rows[-1] > 4900
    steps = [b - a for a, b in pairwise(rows)]
    assert max(steps) <= 2 * min(steps)
