"""slm-run classify from the outside: files in, records out, exit codes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

RECORD_KEYS = [
    "id", "row", "label", "score", "margin", "scores", "label_mass", "num_tokens", "truncated", "rechecked", "error",
]  # fmt: skip
LABELS = ("--labels", "billing,technical,account")


def jsonl(folder: Path, *texts: object) -> Path:
    path = folder / "tickets.jsonl"
    path.write_text("".join(json.dumps({"id": f"t{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


def test_records_have_the_documented_keys_in_input_order(run, bundle: Path, tmp_path: Path) -> None:
    texts = ["a long ticket about an invoice " * 5, "wifi", "wifi", "the app crashes"]
    outcome = run("classify", bundle, "-i", jsonl(tmp_path, *texts), *LABELS)
    assert outcome.code == 0
    assert [list(record) for record in outcome.records] == [RECORD_KEYS] * 4
    assert [(r["id"], r["row"]) for r in outcome.records] == [(f"t{i}", i) for i in range(4)]
    for record in outcome.records:
        assert sum(record["scores"].values()) == pytest.approx(1, abs=1e-6)
        assert record["label"] == max(record["scores"], key=record["scores"].get)
    assert outcome.records[1]["scores"] == outcome.records[2]["scores"]
    assert "4 rows" in outcome.err
    assert "1 duplicates" in outcome.err


def test_an_input_where_every_row_fails_is_no_crash(run, bundle: Path, tmp_path: Path) -> None:
    outcome = run("classify", bundle, "-i", jsonl(tmp_path, "", None), *LABELS)
    assert outcome.code == 1
    assert [record["error"] is None for record in outcome.records] == [False, False]


def test_csv_in_csv_out_keeps_columns_and_writes_a_sidecar(run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('id;body;note\n007;"I was charged\ntwice";x;\n1e5;null;y\n'.replace("x;", "x"))
    out = tmp_path / "out.csv"
    outcome = run("classify", bundle, "-i", tmp_path / "in.csv", "-o", out, "--text-column", "body", *LABELS)
    assert (outcome.code, outcome.out) == (0, "")
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["id"], row["body"], row["note"]) for row in rows] == [
        ("007", "I was charged\ntwice", "x"),
        ("1e5", "null", "y"),
    ]
    assert all(row["label"] for row in rows)
    sidecar = json.loads((tmp_path / "out.csv.run.json").read_text())
    assert sidecar["task"]["scoring"] == "first-token"
    assert sidecar["counts"]["rows"] == 2
    assert sidecar["bundle"]["digest"]


def test_bad_rows_keep_their_place_and_the_exit_code_says_so(run, bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "fine"}\nnot json\n{"text": 7}\n{"text": "   "}\n{"text": "ok \\ud83d end"}\n')
    outcome = run("classify", bundle, "-i", path, *LABELS)
    assert outcome.code == 1
    assert [record["error"] is None for record in outcome.records] == [True, False, False, False, True]
    assert "4 errors" not in outcome.err
    assert "3 errors" in outcome.err


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b", None])
def test_c20_empty_tickets_have_one_status(run, bundle: Path, tmp_path: Path, text: str | None) -> None:
    outcome = run("classify", bundle, "-i", jsonl(tmp_path, "fine", text), *LABELS)
    assert outcome.code == 1
    assert ("missing text" if text is None else "empty text") in outcome.records[1]["error"]


@pytest.mark.parametrize("text", ["x", "x" * 200_000, "👩\u200d💻" * 4_000, "\x00", "9" * 9_000])
def test_c20_tiny_and_huge_tickets_are_classified(run, bundle: Path, tmp_path: Path, text: str) -> None:
    outcome = run("classify", bundle, "-i", jsonl(tmp_path, "short", text), *LABELS, "--max-tokens", 64)
    assert outcome.code == 0
    short, other = outcome.records
    assert other["num_tokens"] <= 64
    assert other["truncated"] == (len(text) > 1)
    assert not short["truncated"]


def test_c20_an_over_long_ticket_is_an_error_on_request(run, bundle: Path, tmp_path: Path) -> None:
    argv = ("-i", jsonl(tmp_path, "x" * 9_000, "short"), *LABELS, "--truncate", "error")
    outcome = run("classify", bundle, *argv)
    assert outcome.code == 1
    assert "raise --max-tokens" in outcome.records[0]["error"]
    assert outcome.records[1]["label"]


@pytest.mark.parametrize("scoring", ["first-token", "sequence", "constrained"])
@pytest.mark.parametrize(
    "flags",
    [
        ("--strategy", "item"),
        ("--strategy", "naive"),
        ("--strategy", "bucketed"),
        ("--batch-tokens", "7"),
        ("--no-prefix-cache",),
        ("--no-dedupe",),
        ("--no-prefix-cache", "--no-dedupe", "--strategy", "bucketed"),
        ("--threads", "1"),
    ],
)
def test_c04_scores_do_not_depend_on_how_the_work_is_done(
    run, bundle: Path, tmp_path: Path, scoring: str, flags: tuple[str, ...]
) -> None:
    texts = ["login does not work", "login does not work ", "hi", "my invoice " * 30, "login does not work"]
    argv = ("-i", jsonl(tmp_path, *texts), "--labels", "billing,technical,signin", "--scoring", scoring)
    expected, found = run("classify", bundle, *argv), run("classify", bundle, *argv, *flags)
    for one, other in zip(expected.records, found.records, strict=True):
        assert one["label"] == other["label"]
        np.testing.assert_allclose(
            np.log(list(one["scores"].values())), np.log(list(other["scores"].values())), atol=1e-4
        )


def test_c03_a_ticket_scores_the_same_alone_and_beside_odd_neighbours(run, bundle: Path, tmp_path: Path) -> None:
    ticket, odd = "the app crashes when I press save", "§$%&/()=?`*'_:;><|" * 17
    mates = [f"neighbour number {i} " * i for i in range(1, 15)]
    for strategy in ("packed", "bucketed", "naive"):
        alone, among = (
            run("classify", bundle, "-i", jsonl(tmp_path, *texts), *LABELS, "--strategy", strategy).records[0]
            for texts in ([ticket], [ticket, odd, *mates])
        )
        assert alone["label"] == among["label"]
        np.testing.assert_allclose(list(alone["scores"].values()), list(among["scores"].values()), atol=1e-5)


def test_c04_the_same_command_gives_the_same_bytes(run, bundle: Path, tmp_path: Path) -> None:
    argv = ("classify", bundle, "-i", jsonl(tmp_path, *(f"ticket {i % 17}" for i in range(50))), *LABELS, "--quiet")
    assert run(*argv) == run(*argv)


def test_c07_the_same_ticket_five_times_gives_five_equal_answers(run, bundle: Path, tmp_path: Path) -> None:
    argv = ("-i", jsonl(tmp_path, *["I cannot log in"] * 5), *LABELS, "--no-dedupe", "--strategy", "item")
    records = run("classify", bundle, *argv).records
    assert len({json.dumps(record["scores"]) for record in records}) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Billing\nbilling \nbilling\n", "line 2"),
        ("\n \n", "no label"),
        ("", "no label"),
    ],
)
def test_c12_twins_and_empty_lists_are_refused(run, bundle: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "labels.txt").write_text(content)
    outcome = run("classify", bundle, "-i", jsonl(tmp_path, "x"), "--labels-file", tmp_path / "labels.txt")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_c12_case_twins_warn_and_spelling_is_kept(run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes('\ufeffBilling\r\nbilling\r\n"x, y"\r\n🙂\r\n\r\n'.encode())
    outcome = run("classify", bundle, "-i", jsonl(tmp_path, "x"), "--labels-file", tmp_path / "labels.txt")
    assert outcome.code == 0
    assert "differ in case only" in outcome.err
    assert list(outcome.records[0]["scores"]) == ["Billing", "billing", '"x, y"', "🙂"]


def test_c12_three_hundred_labels_and_one(run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("".join(f"q{i}\n" for i in range(300)))
    outcome = run("classify", bundle, "-i", jsonl(tmp_path, "x", "y"), "--labels-file", tmp_path / "labels.txt")
    assert [len(record["scores"]) for record in outcome.records] == [300, 300]
    (record,) = run("classify", bundle, "-i", jsonl(tmp_path, "x"), "--labels", "only").records
    assert (record["label"], record["score"], record["margin"]) == ("only", 1.0, None)


def test_c10_nonsense_labels_warn_that_they_hold_no_mass(run, bundle: Path, tmp_path: Path) -> None:
    argv = ("-i", jsonl(tmp_path, "zzxq 42"), "--labels", "qqq www,xx yyy zzz", "--scoring", "sequence")
    outcome = run("classify", bundle, *argv)
    assert outcome.records[0]["label_mass"] < 0.05
    assert "warning: on 1 rows" in outcome.err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ((), 2, "exactly one of --labels"),
        (("--labels", "a", "--task", "t.toml"), 2, "exactly one of --labels"),
        (("--labels", "a,b", "--text-column", "body"), 2, "body"),
        (("--labels", "a,b", "--strategy", "magic"), 2, "magic"),
        (("--labels", "a,b", "--max-tokens", "100000"), 2, "4096 positions"),
        (("--labels", "refund_a,refund_b", "--scoring", "first-token"), 2, "first-token scoring cannot tell"),
        (("--labels", "a,b", "--provider", "coreml"), 4, "coreml is not in this onnxruntime"),
        (("--labels", "a,b", "--nonsense"), 2, "--nonsense"),
        (("--task", "missing.toml"), 2, "cannot read the task file"),
    ],
)
def test_usage_errors_are_one_line(run, bundle: Path, tmp_path: Path, argv, code: int, message: str) -> None:
    (tmp_path / "in.csv").write_text("id,text\n1,hello\n")
    outcome = run("classify", bundle, "-i", tmp_path / "in.csv", "-o", tmp_path / "out.jsonl", *argv)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not list(tmp_path.glob("out*"))


def test_flags_come_from_the_environment_too(run, bundle: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SLM_RUN_CLASSIFY_LIMIT", "1")
    assert len(run("classify", bundle, "-i", jsonl(tmp_path, "a", "b"), *LABELS).records) == 1


def test_python_twin_gives_the_same_answers(run, bundle: Path, tmp_path: Path) -> None:
    from slm_runtime import Classifier, Task

    texts = ["I was charged twice", "", "the app crashes"]
    records = run("classify", bundle, "-i", jsonl(tmp_path, *texts), *LABELS).records
    predictions = Classifier.load(bundle).classify(texts, Task(labels=("billing", "technical", "account")))
    assert [(p.label, p.score) for p in predictions] == [(r["label"], r["score"]) for r in records]
