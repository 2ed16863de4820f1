"""`slm-run tune`: what it writes, what it reports, what it refuses."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from slm_runtime import Classifier, RunOptions
from slm_runtime.content_free import CONTENT_FREE_TEXTS, content_free_prior
from slm_runtime.task import read_task
from slm_runtime.tune_gold import is_for_fitting

TASK = """\
# what we sort
labels = ["billing", "technical", "a.b \\"quoted\\"?"]  # three

[[example]]
text = "My card was charged twice."
label = "billing"
"""
WORDS = {
    "billing": "charged card invoice money refund",
    "technical": "crash error button screen update",
    'a.b "quoted"?': "password email profile login locked",
}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    path.write_text(TASK, encoding="utf-8")
    return path


@pytest.fixture
def gold(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    rows = []
    for number in range(60):
        label = list(WORDS)[number % 3]
        rows.append({"text": " ".join(generator.choice(WORDS[label].split(), 6)) + f" {number}", "label": label})
    path = tmp_path / "gold.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_tuned_task_is_the_given_one_with_a_calibration(run, bundle: Path, task: Path, gold: Path) -> None:
    tuned = task.with_name("tuned.toml")
    outcome = run("tune", bundle, "--task", task, "--gold", gold, "-o", tuned, "--max-error", "0.7")
    assert outcome.code == 0, outcome.err
    text = tuned.read_text(encoding="utf-8")
    before, after = read_task(task), read_task(tuned)
    assert text.startswith('# what we sort\nlabels = ["billing"')
    assert "# three" in text
    assert f"# Fitted by: slm-run tune {bundle} --task {task} --gold {gold} --max-error 0.7\n" in text
    assert "# Data: gold.jsonl, 60 rows, " in text
    assert (after.labels, after.examples, after.system_prompt) == (before.labels, before.examples, before.system_prompt)
    assert len(after.calibration.prior) == 3
    assert after.threshold is not None
    assert after.calibration.temperature != 1
    assert list(task.parent.glob(".*")) == [], "no temporary file is left"


def test_the_report_is_what_the_tuned_task_does(run, bundle: Path, task: Path, gold: Path) -> None:
    tuned, result = task.with_name("tuned.toml"), task.with_name("result.json")
    table = run("tune", bundle, "--task", task, "--gold", gold, "-o", tuned, "--json", result).out
    report = json.loads(result.read_text())
    rows = [json.loads(line) for line in gold.read_text().splitlines()]
    held_back = [row for row in rows if not is_for_fitting(row["text"], 0)]
    classifier = Classifier.load(bundle)
    for variant, file in (("before", task), ("fitted", tuned)):
        answers = classifier.classify([row["text"] for row in held_back], read_task(file), RunOptions(all_scores=True))
        right = np.mean([p.label == row["label"] for p, row in zip(answers, held_back, strict=True)])
        loss = -np.mean([np.log(p.scores[row["label"]]) for p, row in zip(answers, held_back, strict=True)])
        quality = report["held_back"][variant]
        assert quality["num_rows"] == len(held_back)
        assert quality["accuracy"] == pytest.approx(right)
        assert quality["log_loss"] == pytest.approx(loss, abs=1e-4)
        assert f"{right:.1%}" in table
    assert report["fit"]["fitted"]["log_loss"] < report["fit"]["before"]["log_loss"]
    assert report["fit"]["before"]["num_rows"] + len(held_back) == 60
    assert report["gold"]["name"] == "gold.jsonl"
    assert "held back, " in table


def test_the_threshold_keeps_its_promise_on_the_half_it_was_fitted_on(
    run, bundle: Path, task: Path, gold: Path
) -> None:
    tuned = task.with_name("tuned.toml")
    argv = ("tune", bundle, "--task", task, "--gold", gold, "-o", tuned, "--max-error", "0.55", "--json", "-")
    report = json.loads(run(*argv).out)
    assert report["threshold"] == read_task(tuned).threshold
    assert report["fit"]["fitted"]["accepted_accuracy"] >= 0.45
    assert report["held_back"]["fitted"]["coverage"] is not None


def test_the_same_rows_give_the_same_file(run, bundle: Path, task: Path, gold: Path) -> None:
    argv = ("tune", bundle, "--task", task, "--gold", gold, "--overwrite", "-o", task.with_name("tuned.toml"))
    texts = [run(*argv).code or task.with_name("tuned.toml").read_text() for _ in range(2)]
    assert texts[0] == texts[1]


def test_without_gold_the_prior_is_what_the_model_says_about_nothing(run, bundle: Path, task: Path) -> None:
    tuned = task.with_name("tuned.toml")
    assert run("tune", bundle, "--task", task, "-o", tuned).code == 0
    calibration = read_task(tuned).calibration
    assert calibration.temperature == 1
    predictions = Classifier.load(bundle).classify(CONTENT_FREE_TEXTS, read_task(task))
    expected = np.mean([[np.log(p.scores[label]) for label in WORDS] for p in predictions], axis=0)
    np.testing.assert_allclose(calibration.prior, expected - expected.mean(), atol=1e-4)
    again = content_free_prior(Classifier.load(bundle), read_task(tuned))
    np.testing.assert_allclose(again, expected, atol=1e-4, err_msg="a calibration of the task is left out")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--gold-column", "kind"), "no row has a 'kind'"),
        (("--limit", "2"), "expected at least 2 each"),
        (("--gold", "none.csv"), "no such file"),
        (("--json", "nowhere/r.json"), "not a file in an existing folder"),
        (("-o", "-"), "not a file in an existing folder"),
    ],
)
def test_what_cannot_be_tuned_is_one_clear_line(run, bundle: Path, task: Path, gold: Path, argv, message) -> None:
    tuned = task.with_name("tuned.toml")
    outcome = run("tune", bundle, "--task", task, "--gold", gold, "-o", tuned, *argv)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not tuned.exists()


def test_unknown_gold_labels_are_named(run, bundle: Path, task: Path, gold: Path) -> None:
    gold.write_text('{"text": "x", "label": "Billing"}\n{"text": "y", "label": "billing"}\n')
    outcome = run("tune", bundle, "--task", task, "--gold", gold, "-o", task.with_name("t.toml"))
    assert outcome.code == 2
    assert "1 rows have a gold label that the task does not have ('Billing')" in outcome.err


def test_a_calibrated_task_and_an_existing_file_are_refused(run, bundle: Path, task: Path, gold: Path) -> None:
    argv = ("tune", bundle, "--task", task, "--gold", gold, "-o", task)
    outcome = run(*argv)
    assert (outcome.code, "exists already" in outcome.err) == (2, True)
    assert task.read_text() == TASK
    assert run(*argv, "--overwrite").code == 0
    outcome = run(*argv, "--overwrite")
    assert (outcome.code, "has a [calibration] already" in outcome.err) == (2, True)


def test_a_threshold_that_was_meant_for_other_scores_brings_a_warning(run, bundle, task: Path, gold: Path) -> None:
    task.write_text(f"threshold = 0.5\n{TASK}")
    argv = ("tune", bundle, "--task", task, "--gold", gold, "--overwrite", "-o", task.with_name("t.toml"))
    assert "threshold 0.5 now applies to calibrated scores" in run(*argv).err
    outcome = run(*argv, "--max-error", "1")
    assert "now applies" not in outcome.err
    assert read_task(task.with_name("t.toml")).threshold == 0


def test_without_tomlkit_the_error_names_the_extra(run, monkeypatch: pytest.MonkeyPatch, bundle, task: Path) -> None:
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    outcome = run("tune", bundle, "--task", task, "-o", task.with_name("t.toml"))
    assert outcome.code == 2
    assert "pip install 'slm-runtime[tune]'" in outcome.err


def test_abstain_is_the_label_below_the_threshold(run, bundle: Path, task: Path, gold: Path) -> None:
    argv = ("classify", bundle, "-i", gold, "--quiet")
    task.write_text(f'abstain = "unsure"\nthreshold = 0.5\n{TASK}')
    plain = run(*argv, "--task", task).records
    assert {r["label"] for r in plain if r["score"] < 0.5} == {"unsure"}
    assert "unsure" not in {r["label"] for r in plain if r["score"] >= 0.5}
    flags = run(*argv, "--task", task, "--threshold", "1", "--abstain", "nobody knows").records
    assert {r["label"] for r in flags} == {"nobody knows"}, "flags win over the file"
    assert [r["scores"] for r in flags] == [r["scores"] for r in plain]
    outcome = run(*argv, "--labels", "a,b", "--abstain", "unsure")
    assert (outcome.code, "--abstain names the label below a threshold" in outcome.err) == (2, True)


def test_a_neutral_calibration_changes_no_byte(run, bundle: Path, task: Path, gold: Path) -> None:
    argv = ("classify", bundle, "-i", gold, "--quiet", "--task", task)
    plain = run(*argv).out
    task.write_text(f"{TASK}[calibration]\ntemperature = 1\n[calibration.prior]\nbilling = 0\n")
    assert run(*argv).out == plain
    task.write_text(f"{TASK}[calibration.prior]\nbilling = 0.5\n")
    assert run(*argv).out != plain


def test_explain_shows_raw_and_calibrated_values(run, bundle: Path, task: Path, gold: Path) -> None:
    argv = ("classify", bundle, "-i", gold, "--task", task, "--explain", "0")
    assert "calibrated" not in run(*argv).out
    task.write_text(f"{TASK}[calibration.prior]\nbilling = -50\n")
    out = run(*argv).out
    assert "calibrated" in out
    assert "label: 'billing'" in out
