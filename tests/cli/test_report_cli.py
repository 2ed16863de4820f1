"""slm-run report from the outside: an output in, one page out, exit codes."""

import csv
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slm_runtime.lines import MAX_RECORD_CHARS

LABELS = ("--labels", "billing,technical,account")
HEADINGS = [
    "Key figures",
    "Against the gold labels",
    "Labels",
    "Margins",
    "Lengths and padding",
    "Throughput over time",
    "Tickets to look at first",
    "Errors",
]
TICKETS = [
    ("t0", "I was charged twice", "billing"),
    ("t1", "the app crashes", "technical"),
    ("t2", "   ", "technical"),
    ("t3", "x" * 200_000, ""),
    ("t4", "close my account", "cancel"),
    ("t5", "I was charged twice", "billing"),
]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the test, with six tickets as CSV and JSONL."""
    monkeypatch.chdir(tmp_path)
    csv.field_size_limit(MAX_RECORD_CHARS)
    with Path("in.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("id", "text", "gold"), *TICKETS])
    lines = [json.dumps(dict(zip(("id", "text", "gold"), ticket, strict=True))) + "\n" for ticket in TICKETS]
    Path("in.jsonl").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def classified(run, bundle: Path, in_folder: Path) -> Path:
    """out.jsonl, from in.jsonl."""
    assert run("classify", bundle, "-i", "in.jsonl", "-o", "out.jsonl", *LABELS, "--max-tokens", 64).code == 1
    return in_folder


def text_of(page: Path | str) -> str:
    """What is read on the page, roughly: without tags, white space as single spaces."""
    source = Path(page).read_text(encoding="utf-8")
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", source.replace("<wbr>", ""))).split())


def fact(page: Path | str, name: str) -> str:
    """The value of a figure of the page."""
    found = re.search(rf"<dt>{name}</dt><dd>([^<]*)</dd>", Path(page).read_text(encoding="utf-8"))
    assert found, f"no figure {name!r}"
    return found[1]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("source", ["in.jsonl", "in.csv"])
def test_every_output_makes_the_same_figures(run, bundle: Path, in_folder: Path, source: str, ending: str) -> None:
    out = f"out.{ending}"
    assert run("classify", bundle, "-i", source, "-o", out, *LABELS, "--max-tokens", 64).code == 1
    outcome = run("report", out, "-o", "report.html", "--gold", "gold")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "slm-run: report.html: a report on 6 rows\n"
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", Path("report.html").read_text()) == HEADINGS
    facts = [fact("report.html", name) for name in ("rows", "errors", "truncated", "duplicates", "below threshold")]
    assert facts == ["6", "1", "1", "1", "0"]
    left_out = [fact("report.html", name) for name in ("judged, failed", "without gold label", "gold not in task")]
    assert left_out == ["1", "1", "1"]
    text = text_of("report.html")
    assert "4 rows are judged" in text
    assert "cancel 1" in text
    assert f"{'x' * 299}\u2026 200,000 characters" in text
    assert "empty text" in text
    assert ("prompt length, tokens" in text) == (ending in ("jsonl", "parquet"))


def test_accuracy_is_that_of_the_labels(run, classified: Path) -> None:
    labels = [json.loads(line)["label"] for line in Path("out.jsonl").read_text().splitlines()]
    right = sum(labels[row] == TICKETS[row][2] for row in (0, 1, 2, 5))
    assert run("report", "out.jsonl", "-o", "report.html", "--gold", "gold").code == 0
    assert fact("report.html", "accuracy") == f"{right / 4:.1%}"
    assert f"{right} of 4 right" in text_of("report.html")


def test_tickets_come_closest_first_as_many_as_asked_for(run, classified: Path) -> None:
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    closest = sorted((r["margin"], r["row"]) for r in records if r["margin"] is not None)[:3]
    assert run("report", "out.jsonl", "-o", "report.html", "--review", 3).code == 0
    rows = re.findall(r'data-name="row">(\d+)<', Path("report.html").read_text())
    assert rows == [str(row) for _, row in closest]
    assert run("report", "out.jsonl", "-o", "none.html", "--review", 0).code == 0
    assert "Tickets to look at first" not in text_of("none.html")


def test_texts_of_an_input_that_has_changed_are_left_out(run, classified: Path) -> None:
    with Path("in.jsonl").open("a") as stream:
        stream.write('{"text": "one more"}\n')
    outcome = run("report", "out.jsonl", "-o", "report.html")
    assert outcome.code == 0
    note = "Ticket texts are left out. in.jsonl has changed since the run; give it as it was with --input."
    assert f"slm-run: {note}\n" in outcome.err
    assert note in text_of("report.html")
    assert "charged twice" not in text_of("report.html")
    assert run("report", "out.jsonl", "-o", "report.html", "--input", "in.jsonl", "--overwrite").code == 0
    assert "charged twice" in text_of("report.html")
    refused = run("report", "out.jsonl", "-o", "gold.html", "--gold", "gold")
    assert refused.code == 2
    assert "has changed since the run" in refused.err


def test_an_input_of_other_tickets_is_refused(run, classified: Path) -> None:
    Path("other.jsonl").write_text(Path("in.jsonl").read_text().replace('"t1"', '"t9"'))
    outcome = run("report", "out.jsonl", "-o", "report.html", "--input", "other.jsonl")
    assert outcome.code == 2
    assert "other.jsonl: row 1 has the id 't9', in the output 't1'" in outcome.err
    Path("short.jsonl").write_text("".join(Path("in.jsonl").read_text().splitlines(keepends=True)[:4]))
    assert "has no row 4" in run("report", "out.jsonl", "-o", "report.html", "--input", "short.jsonl").err
    assert not Path("report.html").exists()


def test_a_recorded_input_of_other_tickets_costs_the_texts_only(run, classified: Path) -> None:
    record = json.loads(Path("out.jsonl.run.json").read_text())
    Path("out.jsonl.run.json").write_text(json.dumps(record | {"input": None}))
    Path("in.jsonl").write_text('{"id": "t0", "text": "another"}\n')
    outcome = run("report", "out.jsonl", "-o", "report.html")
    assert outcome.code == 0
    assert "Ticket texts are left out. in.jsonl: has no row 1" in outcome.err
    assert fact("report.html", "rows") == "6"
    assert "another" not in text_of("report.html")


def test_without_a_record_the_page_says_what_is_not_known(run, classified: Path) -> None:
    Path("out.jsonl.run.json").unlink()
    outcome = run("report", "out.jsonl", "-o", "report.html", "--input", "in.jsonl", "--gold", "gold")
    assert outcome.code == 0
    text = text_of("report.html")
    assert "There is no out.jsonl.run.json that can be read" in text
    assert "has no timeline" in text
    assert "every gold label counts as one of them" in text
    assert fact("report.html", "duplicates") == "\u2013"
    assert fact("report.html", "gold not in task") == "0"


@pytest.mark.parametrize("record", ["[]", "{", '{"counts": 7, "task": [], "flags": {"input": 3}, "timeline": {}}'])
def test_a_damaged_record_does_not_stop_the_report(run, classified: Path, record: str) -> None:
    Path("out.jsonl.run.json").write_text(record)
    assert run("report", "out.jsonl", "-o", "report.html").code == 0
    assert fact("report.html", "rows") == "6"


def test_a_record_of_another_run_is_noticed(run, classified: Path) -> None:
    lines = Path("out.jsonl").read_text().splitlines(keepends=True)
    Path("out.jsonl").write_text("".join(lines[:4]))
    assert run("report", "out.jsonl", "-o", "report.html").code == 0
    assert "out.jsonl.run.json is about 6 rows, the output has 4." in text_of("report.html")


def test_an_output_without_rows_is_a_page(run, bundle: Path, in_folder: Path) -> None:
    Path("empty.jsonl").touch()
    assert run("classify", bundle, "-i", "empty.jsonl", "-o", "out.jsonl", *LABELS).code == 0
    assert run("report", "out.jsonl", "-o", "report.html").code == 0
    assert "The output has no rows." in text_of("report.html")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("gone.jsonl", "-o", "r.html"), "gone.jsonl: cannot be read: No such file or directory"),
        (("in.jsonl", "-o", "r.html"), "in.jsonl: line 1: no key 'row'; give a whole output of slm-run classify"),
        (("in.csv", "-o", "r.html"), "in.csv: the last columns are 'id', 'text', 'gold', expected label, score"),
        (("torn.jsonl", "-o", "r.html"), "torn.jsonl: line 3: not valid JSON"),
        (("out.jsonl.run.json", "-o", "r.html"), "the ending '.json' says no format"),
        (("out.jsonl",), "Missing option '-o'"),
        (("out.jsonl", "-o", "there.html"), "there.html: exists already; give another name, or --overwrite"),
        (("out.jsonl", "-o", "no/r.html"), "there is no folder no; make it first"),
        (("out.jsonl", "-o", "."), "is a folder, expected a file name"),
        (("out.jsonl", "-o", "out.jsonl", "--overwrite"), "is what the report is made from; give the page another"),
        (("out.jsonl", "-o", "in.jsonl", "--overwrite", "--input", "in.jsonl"), "is what the report is made from"),
        (("out.jsonl", "-o", "r.html", "--input", "gone.csv"), "gone.csv: cannot be read"),
        (("out.jsonl", "-o", "r.html", "--gold", "intent"), "no row has a value for --gold 'intent'; its first"),
        (("out.jsonl", "-o", "r.html", "--gold", "x", "--input", "in.csv"), "in.csv: no column 'x' for --gold; it has"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line(run, classified: Path, argv: tuple[str, ...], message: str) -> None:
    Path("there.html").write_text("mine")
    lines = Path("out.jsonl").read_text().splitlines(keepends=True)
    Path("torn.jsonl").write_text("".join(lines[:2]) + lines[2][:20])
    before = {path.name for path in Path().iterdir()}
    outcome = run("report", *argv)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert {path.name for path in Path().iterdir()} == before
    assert Path("there.html").read_text() == "mine"


def test_overwrite_replaces_a_page_and_a_link_stays_a_link(run, classified: Path) -> None:
    Path("real.html").write_text("old")
    Path("link.html").symlink_to("real.html")
    assert run("report", "out.jsonl", "-o", "link.html", "--overwrite").code == 0
    assert Path("link.html").is_symlink()
    assert Path("real.html").read_text().startswith("<!DOCTYPE html>")
    assert not list(Path().glob(".*.part"))


def test_the_page_goes_to_standard_output_and_a_full_disk_is_told(run, classified: Path) -> None:
    outcome = run("report", "out.jsonl", "-o", "-")
    assert outcome.code == 0
    assert outcome.out.startswith("<!DOCTYPE html>")
    if os.path.exists("/dev/full"):  # noqa: PTH110 - a device
        full = run("report", "out.jsonl", "-o", "/dev/full")
        assert full.code == 2
        assert "/dev/full: cannot be written: No space left on device" in full.err


def test_the_same_output_makes_the_same_page(run, classified: Path) -> None:
    for name in ("one.html", "two.html"):
        assert run("report", "out.jsonl", "-o", name, "--gold", "gold").code == 0
    assert Path("one.html").read_bytes() == Path("two.html").read_bytes()


def test_without_the_extra_one_line_says_what_to_install(run, classified: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = run("report", "out.jsonl", "-o", "report.html")
    assert outcome.code == 2
    assert "pip install 'slm-runtime[report]'" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not Path("report.html").exists()


CHECK = """
import sys
from slm_runtime.cli import main
code = main(sys.argv[1:])
print("loaded:", sorted({"matplotlib", "onnxruntime"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def in_a_process(*argv: str) -> list[str]:
    """The lines on standard error of a process that has no display and no home."""
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name}
    environment |= {"HOME": "/nonexistent", "MPLCONFIGDIR": "/nonexistent", "MPLBACKEND": "TkAgg"}
    command = [sys.executable, "-c", CHECK, *argv]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_help_does_not_wait_for_matplotlib() -> None:
    assert in_a_process("--help") == ["loaded: []"]


def test_no_display_and_no_home_are_needed(classified: Path) -> None:
    said = in_a_process("report", "out.jsonl", "-o", "r.html")
    assert said == ["slm-run: r.html: a report on 6 rows", "loaded: ['matplotlib', 'onnxruntime']"]
