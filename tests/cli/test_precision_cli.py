"""int8, the margin guard, and `--precision`: labels stay those of fp32, and int8 answers belong to their row alone."""

import dataclasses
import json
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from test_resume import journal_of, start, stop_midway, write_tickets

from slm_export.cli import main as slm_export
from slm_runtime import guarded_scorer
from slm_runtime.classifier import Classifier
from slm_runtime.guarded_scorer import FIRST_STAGE, pilot_size, pilot_stages
from slm_runtime.manifest import MANIFEST_FILE, read_manifest, seal_bounds
from slm_runtime.options import RunOptions
from slm_runtime.task import Task

LABELS = ("billing", "technical", "account")
LABEL_FLAGS = ("--labels", ",".join(LABELS))
WORDS = ["wifi", "down", "invoice", "twice", "login", "réseau", "請求", "crash", "refund", "¿?", "0x80070005"]


def make_texts(count: int, seed: int = 3) -> list[str]:
    words = random.Random(seed)
    return [" ".join(words.choices(WORDS, k=words.choice((1, 3, 10, 40)))) + f" {row}" for row in range(count)]


def with_bound(bundle: Path, folder: Path, nats: float) -> Path:
    """A copy of `bundle` whose bounds are all `nats`, as if they had been measured so."""
    copy = Path(shutil.copytree(bundle, folder))
    manifest = read_manifest(copy)
    assert manifest.int8 is not None
    bounds = tuple(dataclasses.replace(bound, bound=nats) for bound in manifest.int8.bounds)
    seal = seal_bounds(manifest.int8_digest(manifest.int8.decoder, manifest.int8.opening), bounds)
    manifest = dataclasses.replace(manifest, int8=dataclasses.replace(manifest.int8, bounds=bounds, seal=seal))
    (copy / MANIFEST_FILE).write_text(manifest.to_json())
    return copy


def bound_for_share(bundle: Path, texts: list[str], share: float) -> float:
    """The bound under which int8 is in doubt about so many of the texts."""
    predictions = Classifier.load(bundle, precision="int8").classify(texts, Task(LABELS))
    return float(np.quantile([p.margin for p in predictions], share))


@pytest.mark.parametrize("scoring", ["first-token", "sequence", "constrained"])
def test_c03_int8_scores_are_the_row_s_own_to_the_last_bit(int8_bundle: Path, scoring: str) -> None:
    texts = make_texts(16)
    texts[3], texts[5], texts[9] = "¿§¶ÆØ" * 60, "help", texts[9] * 20
    labels = ("billing problem", "technical problem", "account") if scoring != "first-token" else LABELS
    task = Task(labels, scoring=scoring)
    classifier = Classifier.load(int8_bundle, precision="int8")
    alone = [classifier.classify([text], task)[0].scores for text in texts]
    for options in (
        RunOptions(),
        RunOptions(strategy="bucketed"),
        RunOptions(strategy="naive"),
        RunOptions(prefix_cache=False),
        RunOptions(batch_tokens=60),
    ):
        assert [p.scores for p in classifier.classify(texts, task, options)] == alone, options
    assert [p.scores for p in classifier.classify(texts[::-1], task)][::-1] == alone


def test_auto_gives_the_labels_of_fp32_and_marks_what_it_scored_twice(int8_bundle: Path, tmp_path: Path) -> None:
    texts = make_texts(150)
    bundle = with_bound(int8_bundle, tmp_path / "bundle", bound_for_share(int8_bundle, texts, 0.15))
    exact = Classifier.load(bundle, precision="fp32").classify(texts, Task(LABELS))
    int8 = Classifier.load(bundle, precision="int8").classify(texts, Task(LABELS))
    runner = Classifier.load(bundle).prepare(Task(LABELS))
    guarded = [p for window in [runner.run(tickets_of(texts))] for p in window]
    assert runner.int8_pays
    bound = runner.bound.bound
    for auto, fp32, own in zip(guarded, exact, int8, strict=True):
        assert auto.rechecked == (own.margin <= bound)
        if auto.rechecked:
            assert auto.label == fp32.label
            assert auto.scores == pytest.approx(fp32.scores, abs=1e-5)
        else:
            assert auto.scores == own.scores
    assert 0 < runner.counts.rechecked == sum(p.rechecked for p in guarded) < 50
    doubted = [(own, fp32) for own, fp32 in zip(int8, exact, strict=True) if own.margin <= bound]
    assert runner.counts.changed == sum(own.label != fp32.label for own, fp32 in doubted)


def tickets_of(texts: list[str]):
    from slm_runtime.records import Ticket

    return [Ticket(row, None, text) for row, text in enumerate(texts)]


def test_auto_gives_up_where_too_much_is_in_doubt(int8_bundle: Path, tmp_path: Path) -> None:
    texts = make_texts(100)
    bundle = with_bound(int8_bundle, tmp_path / "bundle", 50.0)
    runner = Classifier.load(bundle).prepare(Task(LABELS))
    guarded = list(runner.run(tickets_of(texts)))
    exact = Classifier.load(bundle, precision="fp32").classify(texts, Task(LABELS))
    assert runner.int8_pays is False
    assert [p.label for p in guarded] == [p.label for p in exact]
    assert sum(p.rechecked for p in guarded) == FIRST_STAGE, "after them int8 is left out"


def test_the_fp32_decoder_is_not_opened_before_it_is_needed(int8_bundle: Path, tmp_path: Path) -> None:
    classifier = Classifier.load(with_bound(int8_bundle, tmp_path / "bundle", 1e-9))
    assert [graph.precision for graph in classifier.open_graphs] == ["int8"]
    predictions = classifier.classify(make_texts(40), Task(LABELS))
    assert not any(p.rechecked for p in predictions)
    assert [graph.precision for graph in classifier.open_graphs] == ["int8"]
    classifier.classify(make_texts(40), Task(LABELS), RunOptions(strategy="bucketed"))
    assert len(Classifier.load(int8_bundle, precision="fp32").open_graphs) == 1


def test_more_labels_than_were_measured_are_labelled_in_fp32(run, int8_bundle: Path, tmp_path: Path) -> None:
    labels = [f"{word}{number}" for number in range(45) for word in ("q",)]
    (tmp_path / "labels.txt").write_text("\n".join(labels))
    (tmp_path / "in.jsonl").write_text('{"text": "my invoice"}\n')
    argv = ("-i", tmp_path / "in.jsonl", "--labels-file", tmp_path / "labels.txt")
    outcome = run("classify", int8_bundle, *argv, "-o", tmp_path / "out.jsonl")
    assert outcome.code == 0
    assert "int8 was not measured with 45 labels under" in outcome.err
    assert json.loads((tmp_path / "out.jsonl.run.json").read_text())["precision"] == {"labels_by": "fp32"}


def test_the_record_says_what_int8_did(run, int8_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in make_texts(60)))
    argv = ("classify", int8_bundle, "-i", tmp_path / "in.jsonl", *LABEL_FLAGS)
    assert run(*argv, "-o", tmp_path / "int8.jsonl", "--precision", "int8").code == 0
    facts = json.loads((tmp_path / "int8.jsonl.run.json").read_text())["precision"]
    bound = read_manifest(int8_bundle).int8.bound_for("first-token")
    assert facts["labels_by"] == "int8"
    assert facts["int8_differs"] == {"rows": bound.labels_differ, "of": bound.num_rows}
    outcome = run(*argv, "-o", tmp_path / "auto.jsonl")
    record = json.loads((tmp_path / "auto.jsonl.run.json").read_text())
    rechecked = [json.loads(line)["rechecked"] for line in (tmp_path / "auto.jsonl").read_text().splitlines()]
    assert record["precision"]["labels_by"] == "auto"
    assert record["precision"]["rechecked"] == record["counts"]["rechecked"] == sum(rechecked) > 0
    assert record["precision"]["measured_at_export"]["bound"] == bound.bound
    assert f"{sum(rechecked)} re-checked" in outcome.err


def test_a_threshold_in_doubt_is_decided_in_fp32(int8_bundle: Path, tmp_path: Path) -> None:
    texts = make_texts(120)
    plain = Classifier.load(int8_bundle, precision="int8").classify(texts, Task(LABELS))
    threshold = sorted(p.score for p in plain)[len(plain) // 2]
    bundle = with_bound(int8_bundle, tmp_path / "bundle", 0.02)
    task = Task(LABELS, threshold=threshold)
    guarded = Classifier.load(bundle).classify(texts, task)
    near = [p.row for p in plain if abs(p.score - threshold) < 0.002]
    assert near
    assert all(guarded[row].rechecked for row in near)
    assert not all(p.rechecked for p in guarded)


def test_c30_an_auto_run_that_is_resumed_ends_as_an_uninterrupted_one(int8_bundle: Path, tmp_path: Path) -> None:
    tickets = write_tickets(tmp_path / "in.jsonl")
    texts = [json.loads(line)["text"] for line in tickets.read_text().splitlines()]
    bundle = with_bound(int8_bundle, tmp_path / "bundle", bound_for_share(int8_bundle, [t for t in texts if t], 0.1))
    whole = start(bundle, tickets, tmp_path / "whole.jsonl")
    whole.communicate()
    assert '"rechecked": true' in (tmp_path / "whole.jsonl").read_text()
    out = tmp_path / "out.jsonl"
    stop_midway(start(bundle, tickets, out), out, signal.SIGKILL, lines=6)
    assert journal_of(out).exists()
    again = start(bundle, tickets, out, "--resume", "--precision", "fp32")
    assert "precision was auto, is fp32" in again.communicate()[1]
    resumed = start(bundle, tickets, out, "--resume")
    resumed.communicate()
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_bundle_without_the_asked_decoder_says_so(run, bundle: Path, int8_bundle: Path, tmp_path: Path) -> None:
    outcome = run("classify", bundle, *LABEL_FLAGS, "--precision", "int8", "--limit", 1)
    assert outcome.code == 4
    assert "holds no int8 decoder" in outcome.err
    own = Path(shutil.copytree(int8_bundle, tmp_path / "bundle"))
    (own / "decoder-fp32.data").unlink()
    outcome = run("classify", own, *LABEL_FLAGS)
    assert outcome.code == 4
    assert "decoder-fp32.data: missing" in outcome.err


@pytest.mark.parametrize("tampered", [0.0, -1.0, 1e-6, float("inf"), float("nan"), "0.1", None])
def test_a_tampered_bound_is_refused(run, int8_bundle: Path, tmp_path: Path, tampered: object) -> None:
    own = Path(shutil.copytree(int8_bundle, tmp_path / "bundle"))
    manifest = json.loads((own / MANIFEST_FILE).read_text())
    manifest["int8"]["bounds"][0]["bound"] = tampered
    (own / MANIFEST_FILE).write_text(json.dumps(manifest))
    outcome = run("classify", own, *LABEL_FLAGS)
    assert outcome.code == 4
    assert "export the bundle again" in outcome.err
    assert "Traceback" not in outcome.err


def test_an_export_of_int8_alone_works_only_where_it_is_asked_for(run, checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    assert slm_export([str(checkpoint), "--output", str(folder), "--precision", "int8"]) == 0
    assert not list(folder.glob("decoder-fp32*"))
    assert not (folder / "roofline.onnx").exists()
    (tmp_path / "in.jsonl").write_text('{"text": "my invoice"}\n')
    argv = ("classify", folder, *LABEL_FLAGS, "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
    refused = run(*argv)
    assert refused.code == 4
    assert "--precision int8" in refused.err
    assert run(*argv, "--precision", "int8").code == 0
    assert run("verify", folder).code == 0
    assert "decoder-int8.onnx (int8)" in run("inspect", folder).out
    assert run("bench", folder, "--precision", "int8", "--limit", 3).code == 0


def test_bench_compares_precisions_in_one_run(run, int8_bundle: Path) -> None:
    outcome = run(
        "bench", int8_bundle, "--precision", "fp32,int8,auto", "--strategies", "packed", "--limit", 6, "--json", "-"
    )
    rows = json.loads(outcome.out)["strategies"]
    assert list(rows) == ["packed/fp32", "packed/int8", "packed/auto"]
    assert rows["packed/fp32"]["labels_equal"] == rows["packed/auto"]["labels_equal"] == 6


def test_verify_notices_an_int8_decoder_that_computes_something_else(run, int8_bundle: Path, tmp_path: Path) -> None:
    outcome = run("verify", int8_bundle)
    assert outcome.code == 0
    assert "int8:" in outcome.out
    outcome = run("verify", with_bound(int8_bundle, tmp_path / "bundle", 1e-6))
    assert outcome.code == 3
    assert "integer products" in outcome.err


def test_the_share_that_ends_int8_leaves_a_gain() -> None:
    assert 0 < guarded_scorer.MAX_DOUBTFUL_SHARE <= 1 / 3
    assert [pilot_size(n) for n in (1, 100, 600, 1000, 100_000)] == [8, 8, 9, 16, 64]


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (4, [4]), (5, [4, 1]), (100, [4, 4]), (600, [4, 4, 1]), (2000, [4, 4, 8, 15])]
)
def test_what_is_tried_is_short_and_comes_in_stages(count: int, sizes: list[int]) -> None:
    lengths = random.Random(count)
    sequences = [(7,) * lengths.randrange(1, 400) for _ in range(count)]
    stages = pilot_stages(sequences)
    assert [len(stage) for stage in stages] == sizes
    tried = [index for stage in stages for index in stage]
    assert tried == sorted(set(tried)), "in order of appearance"
    shorter = [sequence for sequence in sequences if len(sequence) < max(len(sequences[index]) for index in tried)]
    assert len(shorter) <= max(count / 4, len(tried))
