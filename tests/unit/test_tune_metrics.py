"""Accuracy, F1 and calibration error against values worked out by hand."""

import math

import numpy as np
import pytest

from slm_runtime.tune_metrics import calibration_error, macro_f1, quality_of

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
GOLD = np.array([0, 1, 1, 2])


def test_the_quality_of_four_rows() -> None:
    quality = quality_of(np.log(PROBABILITIES) + 3.0, GOLD, threshold=0.6)
    assert quality.num_rows == 4
    assert quality.accuracy == 0.75
    assert quality.macro_f1 == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert quality.log_loss == pytest.approx(-math.log(0.7 * 0.4 * 0.8 * 0.6) / 4)
    assert quality.calibration_error == pytest.approx((0.3 + 0.5 + 0.2 + 0.4) / 4), "every row in a bin of its own"
    assert (quality.coverage, quality.accepted_accuracy) == (pytest.approx(0.75), 1.0)


def test_nothing_accepted_has_no_accuracy_and_no_threshold_no_coverage() -> None:
    strict = quality_of(np.log(PROBABILITIES), GOLD, threshold=0.9)
    assert (strict.coverage, strict.accepted_accuracy) == (0.0, None)
    assert quality_of(np.log(PROBABILITIES), GOLD).coverage is None


def test_f1_counts_labels_that_occur_as_gold_or_as_answer() -> None:
    # label 0: answered twice, right once, gold once: 2/3; label 4: gold once, never answered: 0; label 7 is nowhere
    assert macro_f1(np.array([0, 0]), np.array([0, 4])) == pytest.approx((2 / 3 + 0) / 2)


def test_scores_of_one_bin_are_averaged_before_they_are_compared() -> None:
    # both in (14/15, 1]: mean score 0.97, accuracy 0.5
    assert calibration_error(np.array([0.96, 0.98]), np.array([True, False])) == pytest.approx(0.47)
    # bins are open below: 2/15 belongs to the second bin, with 0.1; 0.14 to the third
    error = calibration_error(np.array([2 / 15, 0.1, 0.14]), np.array([True, False, False]))
    assert error == pytest.approx((abs(1 - 2 / 15 - 0.1) + 0.14) / 3)


def test_extreme_scores_have_bins() -> None:
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0.0
