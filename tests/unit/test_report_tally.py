"""What is counted while rows pass: shares, the lowest margins, reasons."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm_runtime.report.bounded import OTHERS
from slm_runtime.report.figures import compact, share
from slm_runtime.report.result_row import ResultRow
from slm_runtime.report.tally import TEXT_CHARS, CloseCalls, Reasons, Tally
from slm_runtime.report.tickets import TicketFacts

LABELLED = ResultRow(0, "t", label="a", score=0.6, margin=1.0, scores={"b": 0.3, "a": 0.6, "c": 0.1}, num_tokens=40)


def tally_of(results: list[ResultRow], review: int = 5) -> Tally:
    tally = Tally(labels=(), review=review, with_gold=False)
    for result in results:
        tally.add(result, TicketFacts())
    return tally


def test_every_row_is_labelled_failed_or_below_the_threshold() -> None:
    results = [
        LABELLED,
        replace(LABELLED, row=1, truncated=True),
        replace(LABELLED, row=2, label="b", rechecked=True),
        replace(LABELLED, row=3, label=None),
        ResultRow(4, error="empty text"),
    ]
    tally = tally_of(results)
    assert list(tally.labels.items()) == [("a", 2), ("b", 1)]
    assert (tally.num_rows, tally.num_failed, tally.num_below_threshold) == (5, 1, 1)
    assert (tally.num_truncated, tally.num_rechecked) == (1, 1)
    assert list(tally.margins) == [1.0] * 4
    assert tally.prompt_lengths == {40: 4}


def test_shares_are_of_all_rows() -> None:
    assert [share(part, 8) for part in (0, 1, 3, 8)] == ["0.0%", "12.5%", "37.5%", "100.0%"]
    assert share(0, 0) == "0.0%"


@pytest.mark.parametrize(
    ("count", "shown"), [(7, "7"), (999, "999"), (1_000, "1.0k"), (12_345, "12k"), (3_400_000, "3.4M")]
)
def test_counts_in_a_matrix_take_four_characters(count: int, shown: str) -> None:
    assert compact(count) == shown


@given(st.lists(st.none() | st.floats(0, 3, width=16), max_size=60), st.integers(0, 12))
def test_the_lowest_margins_are_kept_the_first_of_equal_ones(margins: list[float | None], limit: int) -> None:
    calls = CloseCalls(limit)
    for row, margin in enumerate(margins):
        calls.add(replace(LABELLED, row=row, margin=margin), TicketFacts())
    expected = sorted((margin, row) for row, margin in enumerate(margins) if margin is not None)[:limit]
    assert [(call.margin, call.row) for call in calls.ranked()] == expected


def test_a_close_call_names_the_runner_up_and_cuts_what_is_long() -> None:
    calls = CloseCalls(1)
    calls.add(replace(LABELLED, id={"x": [1]}), TicketFacts("y" * 200_000, "g" * 1_000))
    (call,) = calls.ranked()
    assert (call.id, call.best, call.has_label, call.runner_up) == ('{"x": [1]}', "a", True, "b")
    assert (len(call.text or ""), call.num_chars) == (TEXT_CHARS, 200_000)
    assert len(call.gold or "") < 100


def test_a_row_below_the_threshold_shows_what_would_have_won() -> None:
    calls = CloseCalls(2)
    calls.add(replace(LABELLED, label=None), TicketFacts())
    calls.add(replace(LABELLED, row=1, scores={}), TicketFacts())
    below, from_csv = calls.ranked()
    assert (below.best, below.has_label, below.runner_up) == ("a", False, "b")
    assert (from_csv.best, from_csv.has_label, from_csv.runner_up) == ("a", True, None)


def test_reasons_that_differ_in_numbers_are_one() -> None:
    reasons = Reasons()
    for row in range(7):
        reasons.add(f"line {row + 2}: empty text", row)
    reasons.add("line 9: 0xE9 at byte offset 12 is not valid", 7)
    empty, byte = reasons.ranked()
    assert (empty.text, empty.count, empty.rows) == ("line #: empty text", 7, (0, 1, 2, 3, 4))
    assert (byte.text, byte.count) == ("line 9: 0xE9 at byte offset 12 is not valid", 1)  # a single one is told whole


def test_reasons_that_all_differ_do_not_fill_the_memory() -> None:
    reasons = Reasons(max_reasons=3)
    for row in range(20):
        reasons.add("x" * (row + 1) + "y" * 10_000, row)
    found = reasons.ranked()
    assert [(reason.text, reason.count) for reason in found][:1] == [(OTHERS, 17)]
    assert len(found) == 4
    assert math.fsum(reason.count for reason in found) == 20
