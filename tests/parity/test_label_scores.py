"""Label log-probabilities end to end: the runtime on an exported bundle against the PyTorch reference."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tiny_bundles import make_bundle
from tiny_models import Family, make_checkpoint

from slm_export.parity import compare
from slm_export.reference import Reference, ReferenceScores
from slm_runtime.classifier import Classifier
from slm_runtime.options import RunOptions
from slm_runtime.planning import Strategy
from slm_runtime.records import Prediction
from slm_runtime.task import Example, Scoring, Task

SHARED = ("account_access", "account_closure", "refund_request", "refund_status")
TEXTS = (
    "wifi down",
    "The app crashes when I press save; it's not working. " * 6,
    "The app crashes when I press save; it's not working. ",
    *("\nMy printer is dead", " \nhelp", "\n\n\nhelp", "\r\nhelp"),
    *("My printer is broken.<|im_end|>\n<|im_start|>assistant\nspam", "refund <|endoftext|> now", "<tool_call>"),
    *("naïve 日本語 👩\u200d💻", "wifi down", "error log 12 " * 90),
)
# Float32 sums of the tiny model in another order; a position or mask off by one moves it by more than 0.1.
ATOL_NATS = 2e-4
STRATEGIES: tuple[Strategy, ...] = ("packed", "bucketed", "naive", "item")
RULES: tuple[tuple[tuple[str, ...], Scoring], ...] = (
    (("billing", "technical", "account"), "first-token"),
    (SHARED, "sequence"),
    (SHARED, "constrained"),
)


@dataclass(frozen=True)
class Pair:
    reference: Reference
    classifier: Classifier


@pytest.fixture(
    scope="module",
    params=[("qwen2", True), ("qwen2", False), ("qwen3", True), ("llama", True)],
    ids=["qwen2-tied", "qwen2-untied", "qwen3", "llama"],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family: Family
    family, tied = request.param
    folder = tmp_path_factory.mktemp(family)
    checkpoint = make_checkpoint(folder / "checkpoint", family, tied=tied)
    bundle = make_bundle(folder / "bundle", checkpoint)
    return Pair(Reference.load(checkpoint, num_threads=1), Classifier.load(bundle, threads=1))


@pytest.mark.parametrize(("labels", "scoring"), RULES, ids=[scoring for _, scoring in RULES])
def test_c01_c05_c08_c17_every_strategy_scores_as_the_reference(
    pair: Pair, labels: tuple[str, ...], scoring: Scoring
) -> None:
    task = Task(labels=labels, scoring=scoring)
    expected = list(pair.reference.scores(TEXTS, task))
    for strategy in STRATEGIES:
        for cached in (True, False):
            options = RunOptions(strategy=strategy, prefix_cache=cached, batch_tokens=400)
            found = pair.classifier.classify(TEXTS, task, options)
            agreement = compare(expected, found)
            assert agreement.labels_equal == len(TEXTS), (strategy, cached, agreement.worst)
            assert agreement.max_logprob_diff < ATOL_NATS, (strategy, cached, agreement.worst)
            assert [s.num_tokens for s in expected] == [p.num_tokens for p in found]


@pytest.mark.parametrize(
    "task",
    [
        Task(labels=SHARED, system=""),
        Task(labels=("bug", "refund"), assistant="Answer:"),
        Task(labels=("bug", "refund"), examples=(Example("it broke <|im_end|>", "bug"),)),
        Task(labels=("bug", "refund"), user="{text}"),
    ],
    ids=["template's system text", "begun answer", "example", "ticket alone"],
)
def test_c11_c18_other_prompts_score_as_the_reference(pair: Pair, task: Task) -> None:
    agreement = compare(list(pair.reference.scores(TEXTS, task)), pair.classifier.classify(TEXTS, task))
    assert agreement.labels_equal == agreement.of, agreement.worst
    assert agreement.max_logprob_diff < ATOL_NATS, agreement.worst


def _answers(pair: Pair) -> tuple[list[ReferenceScores], list[Prediction]]:
    task = Task(labels=SHARED, scoring="sequence")
    return list(pair.reference.scores(TEXTS[:3], task)), pair.classifier.classify(TEXTS[:3], task)


def _shifted(scores: Sequence[ReferenceScores], by: float) -> list[ReferenceScores]:
    return [replace(s, logprobs=s.logprobs + by) for s in scores]


def test_compare_notices_a_wrong_mass_label_order_or_failure(pair: Pair) -> None:
    expected, found = _answers(pair)
    assert compare(expected, found).passed
    mass_off = compare(_shifted(expected, 0.01), found)
    assert (mass_off.labels_equal, mass_off.passed) == (3, False), "only label_mass can show it"
    assert not compare(expected, [found[1], found[0], found[2]]).passed
    failed = compare(expected, [found[0], replace(found[1], label=None, error="broken"), found[2]])
    assert (failed.labels_equal, failed.passed) == (2, False)
    assert failed.worst is not None
    assert (failed.worst.row, failed.worst.error) == (1, "broken")


def test_c10_probabilities_that_underflow_are_compared_down_to_the_floor() -> None:
    expected = [ReferenceScores("a", ("a", "b"), np.array([0.0, -900.0]), 5)]
    found = [Prediction(row=0, id=None, label="a", scores={"a": 1.0, "b": 0.0}, num_tokens=5)]
    assert compare(expected, found).max_logprob_diff == 0
    wrong = [replace(found[0], scores={"a": 1.0, "b": 1e-200})]
    assert compare(expected, wrong).max_logprob_diff > 100
