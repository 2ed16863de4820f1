"""A calibrated task: the runtime against the reference, which calibrates by its own code."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_bundles import make_bundle
from tiny_models import make_checkpoint

from slm_export.parity import compare
from slm_export.reference import Reference
from slm_runtime.calibration import Calibration
from slm_runtime.classifier import Classifier
from slm_runtime.options import RunOptions
from slm_runtime.task import Task

SHARED = ("account_access", "account_closure", "refund_request", "refund_status")
MANY = tuple(f"{verb}_{noun}_{kind}" for verb in ("card", "refund", "login", "top_up") for noun in
             ("request", "status", "failed", "limit") for kind in ("by_card", "by_transfer", "abroad"))  # fmt: skip
TEXTS = tuple(f"{greeting} I {what}" for greeting in ("Hello,", "Hi", "") for what in
              ("lost my card", "was charged twice", "cannot log in", "want my money back"))  # fmt: skip
ATOL_NATS = 2e-4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Classifier]:
    folder = tmp_path_factory.mktemp("calibrated")
    checkpoint = make_checkpoint(folder / "checkpoint", "qwen2", tied=True)
    bundle = make_bundle(folder / "bundle", checkpoint)
    return Reference.load(checkpoint, num_threads=1), Classifier.load(bundle, threads=1)


def calibrated(task: Task, temperature: float) -> Task:
    prior = np.random.default_rng(3).normal(0, 1.5, len(task.labels))
    return replace(task, calibration=Calibration(temperature, tuple(prior.tolist())))


@pytest.mark.parametrize("temperature", [0.3, 2.5])
@pytest.mark.parametrize(
    "task",
    [
        Task(("billing", "technical", "account"), scoring="first-token"),
        Task(SHARED, scoring="sequence"),
        Task(SHARED, scoring="constrained"),
        Task(MANY, scoring="constrained"),
        Task(MANY, scoring="sequence"),
    ],
    ids=["first-token", "sequence", "constrained", "searched", "searched sequence"],
)
def test_labels_and_log_probabilities_agree_after_calibration(pair, task: Task, temperature: float) -> None:
    reference, classifier = pair
    task = calibrated(task, temperature)
    expected = list(reference.scores(TEXTS, task, reuse_prompt=True))
    agreement = compare(expected, classifier.classify(TEXTS, task))
    assert agreement.labels_equal == agreement.of, agreement.worst
    assert agreement.max_logprob_diff < ATOL_NATS, agreement.worst


def test_the_prior_changes_labels_and_a_wrong_one_is_noticed(pair) -> None:
    reference, classifier = pair
    plain = Task(SHARED, scoring="constrained")
    task = calibrated(plain, 1.5)
    expected = list(reference.scores(TEXTS, task))
    assert [s.label for s in expected] != [s.label for s in reference.scores(TEXTS, plain)]
    assert not compare(expected, classifier.classify(TEXTS, plain)).passed
    warmer = replace(task, calibration=replace(task.calibration, temperature=1.6))
    wrong = compare(expected, classifier.classify(TEXTS, warmer))
    assert wrong.labels_equal == wrong.of
    assert wrong.max_logprob_diff > 100 * ATOL_NATS


@pytest.mark.parametrize("scoring", ["sequence", "constrained"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_search_finds_winner_and_runner_up_after_calibration(pair, scoring, temperature: float) -> None:
    _, classifier = pair
    task = calibrated(Task(MANY, scoring=scoring), temperature)
    found = classifier.classify(TEXTS, task)
    full = classifier.classify(TEXTS, task, RunOptions(all_scores=True))
    for one, other in zip(found, full, strict=True):
        assert one.label == other.label
        assert one.margin == pytest.approx(other.margin, abs=1e-3)
        assert set(sorted(other.scores, key=other.scores.__getitem__)[-2:]) <= set(one.scores)
        assert one.score <= other.score + 1e-4, "a lower bound"
    if scoring == "constrained":
        assert any(len(p.scores) < len(MANY) for p in found)


def test_near_ties_are_those_of_the_model_whatever_the_temperature(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    _, classifier = pair
    task = Task(SHARED, scoring="constrained")
    margins = [p.margin for p in classifier.classify(TEXTS, task)]
    monkeypatch.setattr("slm_runtime.classifier.NEAR_TIE_NATS", float(np.median(margins)))
    plain = [p.rechecked for p in classifier.classify(TEXTS, task)]
    assert 0 < sum(plain) < len(plain)
    for temperature in (0.1, 10.0):
        hot = replace(task, calibration=Calibration(temperature))
        assert [p.rechecked for p in classifier.classify(TEXTS, hot)] == plain
