"""The fit finds a bias that is known, and is the best by its own loss."""

import numpy as np
import pytest

from slm_runtime.calibration import Calibration
from slm_runtime.scoring import log_sum_exp
from slm_runtime.tune_fit import MAX_SCALE, MIN_SCALE, fit_calibration, fit_threshold, rounded
from slm_runtime.tune_metrics import quality_of

BIAS = np.array([1.5, -0.5, 0.0, -1.0])
ZERO = np.zeros(4)


def biased_rows(num_rows: int, temperature: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities [N, 4] of a model that is right but for a temperature and a known bias, and gold labels."""
    generator = np.random.default_rng(seed)
    true = generator.normal(0, 2, (num_rows, 4))
    true -= log_sum_exp(true)[:, None]
    gold = np.array([generator.choice(4, p=np.exp(row)) for row in true])
    biased = true * temperature + BIAS
    return biased - log_sum_exp(biased)[:, None], gold


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_known_bias_and_temperature_are_recovered(temperature: float) -> None:
    calibration = fit_calibration(*biased_rows(20_000, temperature), ZERO)
    assert calibration.temperature == pytest.approx(temperature, rel=0.05)
    np.testing.assert_allclose(calibration.prior, BIAS - BIAS.mean(), atol=0.1 * max(1, temperature))


def test_the_fit_helps_on_rows_it_has_not_seen() -> None:
    calibration = fit_calibration(*biased_rows(500), ZERO)
    logprobs, gold = biased_rows(5_000, seed=1)
    before, after = quality_of(logprobs, gold), quality_of(calibration.apply(logprobs), gold)
    assert after.accuracy > before.accuracy + 0.02
    assert after.log_loss < before.log_loss - 0.1
    assert after.calibration_error < 0.03 < before.calibration_error


def test_no_other_calibration_nearby_fits_better() -> None:
    logprobs, gold = biased_rows(300)
    best = fit_calibration(logprobs, gold, ZERO)

    def penalised(calibration: Calibration) -> float:
        scale = 1 / calibration.temperature
        biases = -scale * np.array(calibration.prior)
        biases -= biases.mean()
        loss = quality_of(calibration.apply(logprobs), gold).log_loss * len(gold)
        return loss + 0.5 * float((biases**2).sum()) + 0.5 * (scale - 1) ** 2

    least = penalised(best)
    generator = np.random.default_rng(0)
    for _ in range(200):
        prior = np.array(best.prior) + generator.normal(0, 0.05, 4)
        other = Calibration(best.temperature * float(np.exp(generator.normal(0, 0.05))), tuple(prior.tolist()))
        assert penalised(other) >= least - 1e-4


def test_the_same_rows_give_the_same_fit() -> None:
    assert fit_calibration(*biased_rows(200), ZERO) == fit_calibration(*biased_rows(200), ZERO)


def test_a_label_without_rows_stays_at_the_content_free_prior() -> None:
    logprobs, gold = biased_rows(400)
    content_free = np.array([*BIAS, 2.0])
    five = np.column_stack([logprobs, np.full(len(gold), -40.0)])  # never likely, never right
    calibration = fit_calibration(five, gold, content_free)
    np.testing.assert_allclose(np.array(calibration.prior)[4] - np.array(calibration.prior)[1], 2.5, atol=0.3)


@pytest.mark.parametrize("right", [True, False])
def test_rows_that_are_always_right_or_against_the_model_keep_the_scale_in_its_limits(*, right: bool) -> None:
    logprobs, _ = biased_rows(200)
    gold = logprobs.argmax(axis=1) if right else logprobs.argmin(axis=1)
    calibration = fit_calibration(logprobs, gold, ZERO)
    assert 1 / MAX_SCALE <= calibration.temperature <= 1 / MIN_SCALE
    assert np.isfinite(calibration.prior).all()
    if not right:
        assert calibration.temperature == 1 / MIN_SCALE


def test_a_common_shift_of_the_prior_is_taken_off() -> None:
    assert rounded(Calibration(1.23456, (3.00004, 1.0, 2.0))) == Calibration(1.2346, (1.0, -1.0, 0.0))


def rows_with(scores: list[float], right: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Two-label rows with these scores of label 0; a right one has gold 0."""
    values = np.array(scores)
    return np.log(np.column_stack([values, 1 - values])), np.array([0 if good else 1 for good in right])


@pytest.mark.parametrize(
    ("max_error", "threshold"),
    [(0.0, 0.85), (0.25, 0.65), (0.4, 0.0), (1.0, 0.0)],
    ids=["none wrong", "one of four", "two of five", "anything"],
)
def test_the_threshold_is_the_smallest_that_keeps_the_error_rate(max_error: float, threshold: float) -> None:
    rows = rows_with([0.6, 0.7, 0.8, 0.9, 0.95], [False, True, False, True, True])
    assert fit_threshold(*rows, max_error) == pytest.approx(threshold)


def test_rows_of_one_score_are_accepted_together_or_not_at_all() -> None:
    logprobs, gold = rows_with([0.9, 0.9, 0.6], [True, False, True])
    assert fit_threshold(logprobs, gold, 0.2) is None
    threshold = fit_threshold(logprobs, gold, 1 / 3)
    assert threshold == 0.0


def test_no_threshold_where_the_surest_rows_are_wrong() -> None:
    assert fit_threshold(*rows_with([0.9, 0.6], [False, True]), 0.1) is None


def test_a_threshold_between_close_scores_separates_them() -> None:
    scores = [0.912345671, 0.912345673]
    threshold = fit_threshold(*rows_with(scores, [False, True]), 0.0)
    assert threshold is not None
    assert scores[0] < threshold <= scores[1]
