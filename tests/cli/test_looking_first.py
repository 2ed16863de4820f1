"""--dry-run, --explain and --strict: what can be known before anything is labelled; and the warnings after it."""

import json
from pathlib import Path

import pytest

LABELS = ("--labels", "billing,technical,account")


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    texts = ["I was charged twice", "", "wifi", "wifi", "my invoice is wrong " * 20]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": f"t{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


def test_a_dry_run_counts_and_writes_nothing(run, bundle: Path, tickets: Path) -> None:
    outcome = run("classify", bundle, "-i", tickets, "-o", tickets.with_name("out.jsonl"), *LABELS, "--dry-run")
    assert outcome.code == 1  # one row would fail
    assert "rows: 5, of which 1 cannot be classified" in outcome.out
    assert "row 1: line 2: empty text" in outcome.out
    assert "distinct prompts: 3" in outcome.out
    assert "estimated time" in outcome.out
    assert [path.name for path in tickets.parent.iterdir()] == ["in.jsonl"]


def test_a_dry_run_counts_the_tokens_that_the_run_reports(run, bundle: Path, tickets: Path) -> None:
    run("classify", bundle, "-i", tickets, "-o", tickets.with_name("out.jsonl"), *LABELS)
    counts = json.loads(tickets.with_name("out.jsonl.run.json").read_text())["counts"]
    out = run("classify", bundle, "-i", tickets, *LABELS, "--dry-run").out
    prefix = int(out.split("shared prefix of ")[1].split()[0])
    assert f"tokens: {counts['prompt_tokens']} in prompts, {counts['processed_tokens'] - prefix} to process" in out


def test_a_dry_run_of_no_rows_is_no_error(run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("")
    outcome = run("classify", bundle, "-i", tmp_path / "in.jsonl", *LABELS, "--dry-run")
    assert (outcome.code, "rows: 0" in outcome.out) == (0, True)


@pytest.mark.parametrize("scoring", ["first-token", "sequence", "constrained"])
def test_c11_explain_shows_ids_and_the_scores_of_the_run(run, bundle: Path, tickets: Path, scoring: str) -> None:
    argv = ("classify", bundle, "-i", tickets, *LABELS, "--scoring", scoring)
    record = run(*argv).records[4]
    out = run(*argv, "--explain", 4).out
    assert f"prompt: {record['num_tokens']} tokens" in out
    assert f"label: {record['label']!r}, score " in out
    for label, probability in record["scores"].items():
        (line,) = [line for line in out.splitlines() if line.startswith(f"  {label} ")]
        assert f"{probability:.4f}" in line
        assert line.split()[-1].isdigit()


def test_explain_shows_why_a_row_fails(run, bundle: Path, tickets: Path) -> None:
    outcome = run("classify", bundle, "-i", tickets, *LABELS, "--explain", 1)
    assert (outcome.code, "empty text" in outcome.out) == (1, True)
    outcome = run("classify", bundle, "-i", tickets, *LABELS, "--explain", 5)
    assert (outcome.code, "5 rows, counted from 0" in outcome.err) == (2, True)


def test_c24_strict_labels_nothing_when_a_row_is_bad(run, bundle: Path, tickets: Path) -> None:
    argv = ("classify", bundle, "-i", tickets, "-o", tickets.with_name("out.jsonl"), *LABELS, "--strict")
    outcome = run(*argv)
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert "1 of 5 rows cannot be classified (row 1: line 2: empty text)" in outcome.err
    assert [path.name for path in tickets.parent.iterdir()] == ["in.jsonl"]
    tickets.write_text('{"text": "fine"}\n')
    assert run(*argv).code == 0


def test_strict_knows_rows_that_are_too_long(run, bundle: Path, tickets: Path) -> None:
    flags = ("--strict", "--max-tokens", 60, "--truncate", "error")
    tickets.write_text('{"text": "fine"}\n' + json.dumps({"text": "long " * 200}) + "\n")
    outcome = run("classify", bundle, "-i", tickets, *LABELS, *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert "row 1: prompt of" in outcome.err


def test_one_label_for_nearly_everything_is_worth_a_warning(run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "the same"}\n' * 40)
    argv = ("classify", bundle, "-i", tmp_path / "in.jsonl")
    assert "40 of 40 labelled rows are" in run(*argv, *LABELS).err
    assert "labelled rows are" not in run(*argv, *LABELS, "--limit", 10).err
    assert "labelled rows are" not in run(*argv, "--labels", "only").err


def test_formulas_stay_text_where_asked(run, bundle: Path, tmp_path: Path) -> None:
    hostile = '=HYPERLINK("http://example.com","click")'
    (tmp_path / "in.csv").write_text(f'id,text\n-1.5,"{hostile.replace(chr(34), chr(34) * 2)}"\n+cmd,plain\n')
    argv = ("classify", bundle, "-i", tmp_path / "in.csv", *LABELS, "--quiet")
    assert run(*argv, "-o", tmp_path / "plain.csv").code == 0
    assert run(*argv, "-o", tmp_path / "safe.csv", "--spreadsheet-safe").code == 0
    plain, safe = ((tmp_path / f"{name}.csv").read_text() for name in ("plain", "safe"))
    assert '"=HYPERLINK(' in plain
    assert '"=HYPERLINK(' not in safe
    assert "\"'=HYPERLINK(" in safe
    assert "\n-1.5," in safe
    assert "\n'+cmd," in safe


def test_doubled_ids_keep_their_rows_and_bring_one_warning(run, bundle: Path, tmp_path: Path) -> None:
    lines = [
        '{"id": "a", "text": "one"}',
        '{"id": "a", "text": "two"}',
        '{"id": 1, "text": "three"}',
        '{"text": "four"}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, lines[3]]))
    outcome = run("classify", bundle, "-i", tmp_path / "in.jsonl", *LABELS)
    assert [record["id"] for record in outcome.records] == ["a", "a", 1, None, None]
    assert outcome.err.count("warning: 1 rows have an id that an earlier row has") == 1
