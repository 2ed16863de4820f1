"""Temperature and prior: what decides, and what is left alone."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm_runtime.calibration import NEUTRAL, Calibration
from slm_runtime.errors import LabelError, TaskError
from slm_runtime.prediction import margin, predict
from slm_runtime.prompt import EncodedTicket
from slm_runtime.records import Prediction, Ticket
from slm_runtime.scorer import ScoredSequence
from slm_runtime.scoring import log_sum_exp
from slm_runtime.task import Task

LABELS = ("a", "b", "c")
LOGPROBS = np.array([-1.0, -2.0, -4.0])


def prediction(logprobs: list[float], mass: float | None = None, **task) -> Prediction:
    scored = ScoredSequence(np.array(logprobs), np.ones(len(logprobs), bool), mass)
    encoded = EncodedTicket(0, (1,), 1, truncated=False)
    return predict(Ticket(0, "x", "text"), encoded, scored, Task(LABELS[: len(logprobs)], **task))


def test_label_score_margin_and_scores_follow_the_calibrated_values() -> None:
    result = prediction([-1.0, -2.0, -4.0], mass=0.5, calibration=Calibration(2.0, (1.0, -1.0, 0.0)))
    calibrated = np.array([-2.0, -1.0, -4.0]) / 2  # (logprob - prior) / temperature, by hand
    shares = np.exp(calibrated) / np.exp(calibrated).sum()
    assert result.label == "b"
    assert result.score == pytest.approx(shares[1])
    assert result.margin == pytest.approx(0.5)
    np.testing.assert_allclose(list(result.scores.values()), shares)
    assert result.label_mass == 0.5, "of the model's own distribution"


def test_a_tie_after_calibration_goes_to_the_earlier_label() -> None:
    assert prediction([-3.0, -2.0, -1.0], calibration=Calibration(prior=(-2.0, -1.0, 0.0))).label == "a"


def test_no_calibration_changes_no_bit() -> None:
    logprobs = np.random.default_rng(0).normal(-3, 4, (200, 7))
    for calibration in (NEUTRAL, Calibration(1.0, (0.0,) * 7)):
        assert np.array_equal(calibration.apply(logprobs), logprobs)
        assert np.array_equal(calibration.shifted(logprobs), logprobs)
        assert calibration.is_neutral
    assert not Calibration(1.1).is_neutral
    assert not Calibration(prior=(0.1, 0.0)).is_neutral


def test_the_margin_is_in_calibrated_nats() -> None:
    scored = ScoredSequence(LOGPROBS, np.array([True, True, False]), None)
    assert margin(scored, NEUTRAL) == pytest.approx(1.0)
    assert margin(scored, Calibration(4.0, (0.5, 0.0, -9.0))) == pytest.approx(0.125)


def test_a_calibration_that_overflows_is_an_error_of_the_row() -> None:
    result = prediction([-1e300, -1.0], calibration=Calibration(1e-10))
    assert result.label is None
    assert "calibration makes a score that is not a finite number" in (result.error or "")


def test_rows_below_the_threshold_get_the_abstain_label() -> None:
    sure = prediction([-0.1, -5.0], threshold=0.9, abstain="unsure")
    unsure = prediction([-1.0, -1.1], threshold=0.9, abstain="unsure")
    assert (sure.label, unsure.label, unsure.error) == ("a", "unsure", None)
    assert unsure.score == pytest.approx(0.525, abs=1e-3)
    assert prediction([-1.0, -1.1], abstain="unsure").label == "a", "no threshold, no abstention"


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_must_be_a_finite_number_above_zero(temperature: float) -> None:
    with pytest.raises(TaskError, match=r"temperature is .*, expected a finite number above 0"):
        Calibration(temperature)


def test_a_prior_must_be_finite_and_belong_to_the_labels() -> None:
    with pytest.raises(TaskError, match="a prior is nan, expected a finite number"):
        Calibration(prior=(0.0, math.nan))
    with pytest.raises(TaskError, match="2 priors for 3 labels"):
        Task(LABELS, calibration=Calibration(prior=(0.0, 1.0)))


@pytest.mark.parametrize(("abstain", "error"), [("", LabelError), (" unsure", TaskError)])
def test_an_abstain_label_is_a_label(abstain: str, error: type[TaskError]) -> None:
    with pytest.raises(error, match="abstain"):
        Task(LABELS, abstain=abstain)


def test_the_digest_covers_calibration_and_abstention() -> None:
    base = Task(LABELS)
    others = [
        dataclasses.replace(base, abstain="unsure"),
        dataclasses.replace(base, calibration=Calibration(1.5)),
        dataclasses.replace(base, calibration=Calibration(prior=(0.1, 0.0, 0.0))),
    ]
    assert len({task.digest for task in (base, *others)}) == 4


@given(
    st.lists(st.floats(-8, 0), min_size=1, max_size=6),
    st.lists(st.floats(-5, 5), min_size=6, max_size=6),
    st.floats(0.05, 20),
)
def test_the_joint_bound_is_one(logprobs: list[float], prior: list[float], temperature: float) -> None:
    calibration = Calibration(temperature, tuple(prior))
    labels = np.arange(len(logprobs))
    bound = float(log_sum_exp(np.array(logprobs)))
    calibrated = (np.array(logprobs) - prior[: len(logprobs)]) / temperature
    assert float(log_sum_exp(calibrated)) <= calibration.joint_bound(bound, labels) + 1e-9


def test_the_joint_bound_is_reached_by_one_label_and_by_equal_ones() -> None:
    one = Calibration(3.0, (0.5, 0.0))
    assert one.joint_bound(-2.0, np.array([0])) == pytest.approx(-2.5 / 3)
    equal = [math.log(0.2)] * 4
    expected = float(log_sum_exp(np.array(equal) / 2.0))
    assert Calibration(2.0).joint_bound(math.log(0.8), np.arange(4)) == pytest.approx(expected)
    assert NEUTRAL.joint_bound(-1.25, np.arange(4)) == -1.25, "what is not calibrated is not touched"
