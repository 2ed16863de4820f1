"""Accuracy, precision, recall and F1 against values worked by hand."""

import pytest

from slm_runtime.report.bounded import OTHERS, BoundedCounter
from slm_runtime.report.gold import GoldTally, NoLabel, Quality

A_FAILED, B_BELOW = ("a", NoLabel.FAILED), ("b", NoLabel.BELOW_THRESHOLD)
# Ten rows that count, three that do not.
ROWS = [
    *[("a", "a")] * 3,
    ("a", "b"),
    A_FAILED,
    *[("b", "b")] * 2,
    ("b", "a"),
    B_BELOW,
    ("c", "a"),
    *[("z", "a")] * 2,
    (None, "a"),
]


def quality_of(rows: list, labels: tuple[str, ...] = ("a", "b", "c", "d")) -> Quality:
    tally = GoldTally(labels)
    for gold, answer in rows:
        tally.add(gold, answer)
    return tally.quality()


def test_rows_that_failed_or_got_no_label_are_wrong() -> None:
    quality = quality_of(ROWS)
    assert quality.num_rows == 10
    assert quality.accuracy == pytest.approx(5 / 10)
    assert quality.num_without_label(NoLabel.FAILED) == 1
    assert quality.num_without_label(NoLabel.BELOW_THRESHOLD) == 1


def test_precision_recall_and_f1_are_those_worked_by_hand() -> None:
    a, b, c, d = quality_of(ROWS).labels
    assert (a.support, a.predicted, a.correct) == (5, 5, 3)
    assert (a.precision, a.recall, a.f1) == pytest.approx((3 / 5, 3 / 5, 3 / 5))
    assert (b.support, b.predicted, b.correct) == (4, 3, 2)
    assert (b.precision, b.recall, b.f1) == pytest.approx((2 / 3, 2 / 4, 4 / 7))
    assert (c.precision, c.recall, c.f1) == (None, 0, 0)
    assert (d.precision, d.recall, d.f1) == (None, None, None)


def test_macro_f1_is_the_mean_over_labels_that_occur() -> None:
    assert quality_of(ROWS).macro_f1 == pytest.approx((3 / 5 + 4 / 7 + 0) / 3)
    assert quality_of([("a", "a"), ("a", "b")]).macro_f1 == pytest.approx((2 / 3 + 0) / 2)  # b is only answered
    assert quality_of([]).macro_f1 is None
    assert quality_of([]).accuracy is None


def test_gold_labels_outside_the_task_are_named_and_left_out() -> None:
    quality = quality_of(ROWS)
    assert quality.unknown_gold == {"z": 2}
    assert quality.num_without_gold == 1
    assert {gold for gold, _ in quality.pairs} == {"a", "b", "c"}


def test_without_the_labels_of_the_task_every_gold_label_counts() -> None:
    quality = quality_of([("a", "a"), ("z", "a"), ("a", "y")], labels=())
    assert [label.label for label in quality.labels] == ["a", "y", "z"]
    assert quality.accuracy == pytest.approx(1 / 3)
    assert quality.unknown_gold == {}


def test_an_answer_outside_the_task_is_a_wrong_label_of_its_own() -> None:
    quality = quality_of([("a", "a"), ("a", "other")], labels=("a", "b"))
    assert [(label.label, label.support, label.predicted) for label in quality.labels] == [
        ("a", 2, 1),
        ("b", 0, 0),
        ("other", 0, 1),
    ]
    assert quality.accuracy == 0.5


def test_confusions_are_wrong_labels_the_most_frequent_first() -> None:
    assert quality_of(ROWS).confusions() == [("a", "b", 1), ("b", "a", 1), ("c", "a", 1)]
    assert quality_of([("b", "a")] * 2 + [("a", "b")]).confusions() == [("b", "a", 2), ("a", "b", 1)]


def test_a_column_of_free_text_as_gold_label_does_not_fill_the_memory() -> None:
    counter = BoundedCounter(max_values=3)
    named = [counter.add(value) for value in ["x", "y", "x", "z", "w", "y", "v" * 10**6]]
    assert named == [True, True, True, True, False, True, False]
    assert list(counter.items()) == [("x", 2), ("y", 2), ("z", 1), (OTHERS, 2)]
    assert counter.total == 7
