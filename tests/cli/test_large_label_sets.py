"""Large label sets are searched, long and templated tickets go through the past; none of it changes an answer."""

import json
from pathlib import Path

import numpy as np
import pytest

from slm_runtime import Classifier, RunOptions, Task
from slm_runtime.cost import CostModel
from slm_runtime.labels import build_label_tree
from slm_runtime.manifest import read_manifest
from slm_runtime.planning import Limits, plan_batches
from slm_runtime.records import Ticket
from slm_runtime.session import keep_prepacked

LABELS = tuple(f"{verb}_{noun}_{kind}" for verb in ("card", "refund", "login", "top_up") for noun in
               ("request", "status", "failed", "limit") for kind in ("by_card", "by_transfer", "abroad"))  # fmt: skip
TEXTS = [f"{greeting} I {what}" for greeting in ("Hello,", "Hi", "") for what in
         ("lost my card", "was charged twice", "cannot log in", "want my money back", "see an error 17")]  # fmt: skip
HEADER = "This mail was forwarded by the help desk of a large company. Please do not answer to this address. " * 12


@pytest.fixture(scope="module")
def classifier(bundle: Path) -> Classifier:
    return Classifier.load(bundle)


@pytest.mark.parametrize("scoring", ["sequence", "constrained"])
@pytest.mark.parametrize("strategy", ["packed", "bucketed", "item"])
def test_search_finds_the_winner_and_the_runner_up_exactly(classifier: Classifier, scoring, strategy) -> None:
    task = Task(LABELS, scoring=scoring)
    found = classifier.classify(TEXTS, task, RunOptions(strategy=strategy))
    full = classifier.classify(TEXTS, task, RunOptions(all_scores=True))
    if scoring == "constrained":  # a random model finds no label likelier than another over the whole vocabulary
        assert any(len(p.scores) < len(LABELS) for p in found)
    for one, other in zip(found, full, strict=True):
        assert one.label == other.label
        assert one.margin == pytest.approx(other.margin, abs=1e-4)
        top_two = sorted(other.scores, key=other.scores.get)[-2:]
        assert set(top_two) <= set(one.scores)
        assert one.score <= other.score + 1e-4, "a lower bound: ruled out labels count with their bound"


@pytest.mark.parametrize("labels", [tuple(f"card{a}{b}" for a in "qxzj" for b in "abcdefghijklmnop"), ("only",)])
def test_labels_that_leave_no_choice_at_first(classifier: Classifier, labels: tuple[str, ...]) -> None:
    task = Task(labels, scoring="constrained")
    found = classifier.classify(TEXTS, task)
    full = classifier.classify(TEXTS, task, RunOptions(all_scores=True))
    assert [p.label for p in found] == [p.label for p in full]
    assert all(p.error is None for p in found)


def test_few_labels_are_all_scored(classifier: Classifier) -> None:
    assert {len(p.scores) for p in classifier.classify(TEXTS, Task(LABELS[:6]))} == {6}


def test_all_scores_flag_scores_every_label(run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": TEXTS[0]}) + "\n")
    argv = ("-i", tmp_path / "in.jsonl", "--labels-file", tmp_path / "labels.txt")
    assert len(run("classify", bundle, *argv, "--all-scores").records[0]["scores"]) == len(LABELS)


def test_a_shared_header_is_computed_once_and_changes_nothing(classifier: Classifier) -> None:
    texts = [HEADER + f"Ticket {i}: the printer number {i * 7} is on fire, please send someone." for i in range(40)]
    runner = classifier.prepare(Task(("a", "b")))
    packed = list(runner.run(Ticket(i, None, text) for i, text in enumerate(texts)))
    single = classifier.classify(texts, Task(("a", "b")), RunOptions(strategy="item", prefix_cache=False))
    assert runner.counts.real_tokens < 0.3 * runner.counts.prompt_tokens
    for one, other in zip(packed, single, strict=True):
        assert one.label == other.label
        np.testing.assert_allclose(list(one.scores.values()), list(other.scores.values()), atol=1e-4)


def test_a_ticket_longer_than_a_row_goes_through_the_past_piece_by_piece(classifier: Classifier) -> None:
    text = " ".join(f"line {i} says {i * i}" for i in range(400))
    for options in (RunOptions(max_tokens=4000), RunOptions(max_tokens=4000, strategy="item")):
        (prediction,) = classifier.classify([text], Task(("a", "b")), options)
        assert prediction.num_tokens > 3000
    long, whole = (classifier.classify([text], Task(("a", "b")), RunOptions(max_tokens=4000, strategy=s))[0]
                   for s in ("packed", "item"))  # fmt: skip
    np.testing.assert_allclose(list(long.scores.values()), list(whole.scores.values()), atol=1e-4)


def test_long_sequences_never_make_a_long_row() -> None:
    tree = build_label_tree("first-token", [(5,), (6,)], 9)
    long = tuple(range(1, 9001))
    batches = list(plan_batches([long, (1, 2), (3,)], tree, "packed", Limits(768, 1_000_000, 23), CostModel(2.4e-4)))
    assert max(len(row) for batch in batches for row in batch.rows) <= 768
    assert sorted(int(i) for batch in batches for i in batch.sequences) == [0, 1, 2]


def test_near_ties_are_decided_on_one_path(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slm_runtime.classifier.NEAR_TIE_NATS", 1e9)
    task = Task(("a", "b", "c"))
    packed = classifier.classify(TEXTS, task)
    alone = classifier.classify(TEXTS, task, RunOptions(strategy="item"))
    assert all(p.rechecked for p in packed)
    assert [p.scores for p in packed] == [p.scores for p in alone], "to the last bit"


def test_the_prepacked_copy_gives_the_same_answers_and_a_damaged_one_is_replaced(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLM_CACHE_DIR", str(tmp_path))
    task, manifest = Task(("a", "b")), read_manifest(bundle)
    first = Classifier.load(bundle).classify(TEXTS, task)
    assert keep_prepacked(bundle, manifest, manifest.decoder, num_threads=1)
    assert not keep_prepacked(bundle, manifest, manifest.decoder, num_threads=1), "one is there"
    second = Classifier.load(bundle).classify(TEXTS, task)
    (copy,) = (tmp_path / "prepacked").iterdir()
    (copy / "graph.onnx").write_bytes(b"torn")
    third = Classifier.load(bundle).classify(TEXTS, task)
    assert [p.scores for p in first] == [p.scores for p in second] == [p.scores for p in third]
    assert keep_prepacked(bundle, manifest, manifest.decoder, num_threads=1), "the damaged one is gone"


def test_prepacked_copies_can_be_switched_off(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SLM_PREPACKED", "off")
    assert not keep_prepacked(bundle, read_manifest(bundle), read_manifest(bundle).decoder, num_threads=1)
    assert not (tmp_path / "prepacked").exists()
