"""Label scores against the definition, written out."""

import numpy as np
import pytest

from slm_runtime.labels import build_label_tree
from slm_runtime.prediction import predict
from slm_runtime.prompt import EncodedTicket
from slm_runtime.records import Ticket
from slm_runtime.scorer import ScoredSequence
from slm_runtime.scoring import label_scores, log_sum_exp, step_logits
from slm_runtime.task import Task

V, D, END = 12, 5, 11
LABELS = [(1, 2), (1, 3), (1,), (4, 5, 6)]


@pytest.fixture
def model() -> tuple[dict[tuple[int, ...], np.ndarray], np.ndarray]:
    """Hidden state of every label prefix, and a head matrix."""
    rng = np.random.default_rng(0)
    prefixes = {label[:length] for label in LABELS for length in range(len(label) + 1)}
    return {prefix: rng.normal(size=D) for prefix in prefixes}, rng.normal(size=(V, D))


def scored(model, rule):
    states, head = model
    tree = build_label_tree(rule, LABELS, END)
    paths = [()]
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*paths[parent], token_id))
    hidden = np.array([[states[paths[node]] for node in tree.scored_nodes]], np.float32)
    rows = head[[step.token_id for step in tree.steps]].astype(np.float32)
    log_norm = log_sum_exp(hidden.astype(np.float64) @ head.T)
    return label_scores(tree, step_logits(tree, hidden, rows), log_norm)


def test_sequence_is_the_full_vocabulary_log_probability_of_label_and_end_of_turn(model) -> None:
    states, head = model
    expected = []
    for label in LABELS:
        total = 0.0
        for length, token in enumerate((*label, END)):
            logits = head @ states[label[:length]]
            total += logits[token] - np.log(np.exp(logits).sum())
        expected.append(total)
    result = scored(model, "sequence")
    np.testing.assert_allclose(result.logprobs[0], expected, atol=1e-6)
    np.testing.assert_allclose(result.mass, np.exp(expected).sum(), atol=1e-6)


def test_constrained_renormalises_every_choice(model) -> None:
    states, head = model

    def choice(prefix: tuple[int, ...], token: int) -> float:
        allowed = {(*label, END)[len(prefix)] for label in LABELS if label[: len(prefix)] == prefix}
        logits = head @ states[prefix]
        return logits[token] - np.log(sum(np.exp(logits[t]) for t in allowed))

    expected = [sum(choice(label[:n], t) for n, t in enumerate((*label, END))) for label in LABELS]
    result = scored(model, "constrained")
    np.testing.assert_allclose(result.logprobs[0], expected, atol=1e-6)
    assert np.exp(result.logprobs).sum() == pytest.approx(1.0, abs=1e-6)


def prediction(logprobs: list[float], **task):
    labels = tuple("abcdef"[: len(logprobs)])
    encoded = EncodedTicket(0, (1,), 1, truncated=False)
    return predict(
        Ticket(0, "x", "text"),
        encoded,
        ScoredSequence(np.array(logprobs), np.ones(len(logprobs), bool), None),
        Task(labels, **task),
    )


def test_a_tie_goes_to_the_earlier_label() -> None:
    assert prediction([-1.0, -0.5, -0.5]).label == "b"


def test_c10_scores_are_probabilities_and_none_is_zero_for_being_unlikely() -> None:
    result = prediction([-700.0, -2.0, -690.5])
    assert sum(result.scores.values()) == pytest.approx(1.0, abs=1e-6)
    assert all(score > 0 for score in result.scores.values())


def test_margin_is_the_distance_to_the_runner_up_and_unknown_for_one_label() -> None:
    assert prediction([-3.0, -1.0, -1.5]).margin == pytest.approx(0.5)
    assert prediction([-3.0]).margin is None


def test_below_the_threshold_there_is_no_label_but_a_score() -> None:
    result = prediction([-1.0, -1.1], threshold=0.9)
    assert (result.label, result.error) == (None, None)
    assert result.score == pytest.approx(0.525, abs=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_c38_a_score_that_is_not_finite_is_an_error_and_never_the_first_label(bad: float) -> None:
    result = prediction([bad, -1.0])
    assert result.label is None
    assert "not a finite number" in result.error
