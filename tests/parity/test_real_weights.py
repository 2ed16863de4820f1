"""Ladder, last step: the catalogue's real 0.5B model, labels all equal and log-probabilities within the promise."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tolerances import REAL_LOGPROB

from slm_export.cli import main as slm_export
from slm_export.parity import compare
from slm_export.reference import Reference
from slm_export.sources import resolve
from slm_runtime import Classifier, RunOptions, Task
from slm_runtime.cli import main as slm_run
from slm_runtime.threads import usable_threads
from slm_runtime.workloads import SEED_LABELS, seed_tickets

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("user_cache")]
MODEL = "qwen2.5-coder-0.5b-instruct"
BANKING = Path(__file__).parents[1] / "data" / "banking77" / "sample.csv"
FIVE_LABELS = ("card_payment", "exchange_rate", "top_up", "transfer", "refund")


@dataclass(frozen=True)
class Real:
    bundle: Path
    reference: Reference
    classifier: Classifier


@pytest.fixture(scope="module")
def real(user_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Real:
    bundle = tmp_path_factory.mktemp("bundles") / MODEL
    assert slm_export([MODEL, "--output", str(bundle), "--precision", "fp32", "--precision", "int8"]) == 0
    reference = Reference.load(resolve(MODEL).folder, num_threads=usable_threads())
    return Real(bundle, reference, Classifier.load(bundle, precision="fp32"))


@pytest.fixture(scope="module")
def banking() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Queries, one of each category in turn, and the 77 categories."""
    with BANKING.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return tuple(row["text"] for row in rows), tuple(dict.fromkeys(row["category"] for row in rows))


def assert_parity(
    real: Real, texts: tuple[str, ...], task: Task, *options: RunOptions, reuse_prompt: bool = False
) -> None:
    expected = list(real.reference.scores(texts, task, reuse_prompt=reuse_prompt))
    for option in options:
        agreement = compare(expected, real.classifier.classify(texts, task, option))
        assert agreement.labels_equal == len(texts), agreement.worst
        assert agreement.max_logprob_diff <= REAL_LOGPROB, agreement.worst


def test_120_seed_tickets(real: Real) -> None:
    texts = tuple(seed_tickets(120))
    assert_parity(real, texts, Task(SEED_LABELS), RunOptions(), RunOptions(strategy="bucketed"))


def test_120_banking_queries_with_five_labels_of_one_and_more_tokens(real: Real, banking) -> None:
    task = Task(FIVE_LABELS)
    runner = real.classifier.prepare(task)
    assert runner.rule == "first-token"
    assert {len(tokens) for tokens in runner.label_tokens} == {1, 2}
    texts = banking[0][:120]
    assert_parity(real, texts[:12], task, RunOptions())
    assert_parity(real, texts, Task(FIVE_LABELS, scoring="sequence"), RunOptions(), RunOptions(strategy="bucketed"))


def test_12_banking_queries_with_all_77_labels(real: Real, banking) -> None:
    texts, categories = banking
    task = Task(categories, scoring="sequence")
    chosen = texts[:72:6]
    (cached,) = real.reference.scores(chosen[:1], task, reuse_prompt=True)
    (whole,) = real.reference.scores(chosen[:1], task)  # 77 passes over the whole prompt
    np.testing.assert_allclose(cached.logprobs, whole.logprobs, atol=REAL_LOGPROB, rtol=0)
    assert_parity(real, chosen, task, RunOptions(), RunOptions(all_scores=True), reuse_prompt=True)


def test_c08_labels_that_share_their_first_token_are_told_apart(real: Real) -> None:
    task = Task(("account_access", "account_closure", "refund_request", "refund_status"))
    assert real.classifier.prepare(task).label_tokens == ((4608, 12759), (4608, 72823), (68483, 7893), (68483, 4773))
    assert_parity(real, ("please shut my account for good", "I cannot get into my account"), task, RunOptions())


@pytest.fixture(scope="module")
def int8(real: Real) -> Classifier:
    return Classifier.load(real.bundle, precision="int8")


def test_int8_is_small_and_near(real: Real, int8: Classifier) -> None:
    sizes = {name: (real.bundle / f"decoder-{name}.data").stat().st_size for name in ("fp32", "int8")}
    assert sizes["int8"] <= 0.45 * sizes["fp32"]
    task, texts = Task(SEED_LABELS), tuple(seed_tickets(120))
    logprobs = [
        np.log([[p.scores[label] for label in SEED_LABELS] for p in classifier.classify(texts, task)])
        for classifier in (real.classifier, int8)
    ]
    error = logprobs[1] - logprobs[0]
    assert np.median(np.abs(error - error.mean(axis=1, keepdims=True))) <= 0.05


def test_auto_gives_the_labels_of_fp32(real: Real, banking) -> None:
    auto = Classifier.load(real.bundle)
    for texts, task in ((tuple(seed_tickets(200)), Task(SEED_LABELS)), (banking[0], Task(FIVE_LABELS))):
        exact, guarded = (c.classify(texts, task) for c in (real.classifier, auto))
        assert [p.label for p in guarded] == [p.label for p in exact]


def test_c03_int8_scores_are_the_row_s_own_to_the_last_bit_with_real_weights(int8: Classifier, banking) -> None:
    texts = [*banking[0][:14], seed_tickets(1)[0] * 3]
    neighbour = "¿§¶ÆØ" * 60  # its own sums leave the exact range: attention is flat over 300 equal tokens
    task = Task(FIVE_LABELS)
    alone = [int8.classify([text], task)[0].scores for text in texts]
    for options in (RunOptions(), RunOptions(strategy="bucketed"), RunOptions(strategy="naive")):
        together = int8.classify([*texts[:7], neighbour, *texts[7:]], task, options)
        del together[7]
        assert [p.scores for p in together] == alone, options


def test_the_small_llama_from_the_catalogue_exports_and_verifies(tmp_path: Path) -> None:
    assert slm_export(["smollm2-135m-instruct", "--output", str(tmp_path / "bundle")]) == 0
    assert slm_run(["verify", str(tmp_path / "bundle")]) == 0
