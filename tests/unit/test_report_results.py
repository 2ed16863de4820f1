"""The outputs of classify, read again: the same rows from every format, and damage with its line."""

from pathlib import Path

import pytest

from slm_runtime.errors import InputError
from slm_runtime.records import Prediction, Ticket
from slm_runtime.report.result_row import ResultRow
from slm_runtime.report.results import open_results
from slm_runtime.report.run_facts import LengthTokens, RunFacts
from slm_runtime.writers import open_output

PREDICTIONS = [
    Prediction(0, "7", label="=sum", score=0.75, margin=1.5, scores={"=sum": 0.75, "b": 0.25}, num_tokens=40),
    Prediction(1, "8", score=0.5, margin=0.0, scores={"b": 0.5, "=sum": 0.5}, num_tokens=41, rechecked=True),
    Prediction(2, "9", error="line 4: empty text"),
]
FIELDS = ({"id": "7", "text": 'a "b"\nc', "label": "=gold"}, {"id": "8", "text": "-x", "label": "'"}, {"id": "9"})


def written(path: Path, *, with_fields: bool = True, spreadsheet_safe: bool = False) -> Path:
    columns = ("id", "text", "label") if with_fields else ()
    with open_output(path, columns=columns, spreadsheet_safe=spreadsheet_safe) as writer:
        for prediction, fields in zip(PREDICTIONS, FIELDS, strict=True):
            writer.write(Ticket(prediction.row, prediction.id, "t", fields=fields), prediction)
    return path


def read(path: Path, *, spreadsheet_safe: bool = False) -> tuple[tuple[str, ...], list[ResultRow]]:
    with open_results(path, id_column="id", spreadsheet_safe=spreadsheet_safe) as results:
        return results.columns, list(results.rows)


def core(result: ResultRow | Prediction) -> tuple[object, ...]:
    return (result.row, result.id, result.label, result.score, result.margin, result.error)


@pytest.mark.parametrize("name", ["o.jsonl", "o.ndjson", "o.csv", "o.TSV", "o.parquet"])
@pytest.mark.parametrize("with_fields", [True, False])
def test_every_format_gives_the_rows_that_were_written(tmp_path: Path, name: str, with_fields: bool) -> None:
    columns, results = read(written(tmp_path / name, with_fields=with_fields))
    assert [core(result) for result in results] == [core(prediction) for prediction in PREDICTIONS]
    if name in ("o.csv", "o.TSV"):
        assert columns == (("id", "text", "label") if with_fields else ())
        assert results[0].num_tokens is None
    else:
        assert [(r.scores, r.num_tokens, r.rechecked) for r in results] == [
            (p.scores, p.num_tokens, p.rechecked) for p in PREDICTIONS
        ]


def test_apostrophes_for_spreadsheets_are_taken_off_again(tmp_path: Path) -> None:
    path = written(tmp_path / "o.csv", spreadsheet_safe=True)
    assert "'=sum" in path.read_text()
    _, results = read(path, spreadsheet_safe=True)
    assert [(r.label, r.fields["text"], r.fields["label"]) for r in results] == [
        ("=sum", 'a "b"\nc', "=gold"),
        (None, "-x", "'"),
        (None, "", ""),
    ]


GOOD = '{"id": 1, "row": 0, "label": "a", "score": 0.5, "margin": 1, "scores": {"a": 0.5}, "error": null}\n'
CSV_GOOD = "text,label,score,margin,error\na,b,0.5,1,\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("o.jsonl", GOOD + '{"id"\n', "line 2: not valid JSON"),
        ("o.jsonl", GOOD + "[1]\n", "line 2: not a JSON object"),
        ("o.jsonl", GOOD + GOOD, "line 2: row 0 after row 0, expected rows in input order"),
        ("o.jsonl", GOOD + "\n" + GOOD.replace('"row": 0', '"row": null'), "line 3: 'row' is null"),
        ("o.jsonl", GOOD.replace('"row": 0, ', ""), "line 1: no key 'row'"),
        ("o.jsonl", GOOD.replace('"label": "a"', '"label": 7'), "line 1: 'label' is 7, expected a string or null"),
        ("o.jsonl", GOOD.replace('"score": 0.5', '"score": NaN'), "line 1: 'score' is nan, expected a finite number"),
        ("o.jsonl", GOOD.replace('"score": 0.5', '"score": 1' + "0" * 400), "line 1: int too large"),
        ("o.jsonl", GOOD.replace('{"a": 0.5}', "[1]"), "line 1: "),
        ("o.jsonl", GOOD.replace('"row": 0', '"row": 1' + "0" * 400), "line 1: 'row' is 1000"),
        ("o.jsonl", "[" * 100_000 + "\n", "line 1: not usable JSON"),
        ("o.jsonl", GOOD + '{"text": "caf\udce9"}\n', "line 2: 0xE9 at byte offset 13"),
        ("o.csv", "", "the last columns are missing, expected label, score, margin, error"),
        ("o.csv", "text,label\n", "the last columns are 'text', 'label', expected label, score, margin, error"),
        ("o.csv", CSV_GOOD + "a,b,0.5\n", "line 3: 3 fields, expected 5"),
        ("o.csv", CSV_GOOD + 'a,"b,0.5,1,\n', "line 3: "),
        ("o.csv", CSV_GOOD + "a,b,x,1,\n", "line 3: could not convert string to float"),
        ("o.csv", CSV_GOOD + "a,b,inf,1,\n", "line 3: 'inf' is not a finite number"),
        ("o.parquet", "no Parquet", "o.parquet: beyond row 0: "),
        ("o.txt", "", "the ending '.txt' says no format"),
    ],
)
def test_damage_is_one_message_that_names_the_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError) as caught:
        read(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert message in str(caught.value)


def test_a_parquet_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"row": [0], "label": ["a"]}), tmp_path / "o.parquet")
    with pytest.raises(InputError, match="row 0: no key 'score'"):
        read(tmp_path / "o.parquet")


def test_a_missing_output_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone.jsonl: cannot be read: No such file"):
        read(tmp_path / "gone.jsonl")


def test_a_record_of_a_run_is_not_trusted() -> None:
    run = RunFacts(
        {
            "bundle": ["x"],
            "task": {"labels": ["a", 7, "b"], "scoring": 3},
            "counts": {"rows": True, "errors": 10**400, "truncated": float("inf"), "duplicates": 4},
            "timings": {"run_s": 0},
            "timeline": [[1, 5], [0.5, 7], [1 + 1e-12, 6], ["x", 9], None, [2, 4], [3, 11]],
            "lengths": [{"length": 9, "real_tokens": 8, "processed_tokens": 9}, {"length": 3}, 5],
        }
    )
    assert (run.text("bundle", "id"), run.text("task", "scoring"), run.labels) == (None, None, ("a", "b"))
    numbers = [run.number("counts", key) for key in ("rows", "errors", "truncated", "duplicates", "missing")]
    assert numbers == [None, None, None, 4, None]
    assert run.rows_per_s is None
    assert run.timeline == [(0, 0), (1, 5), (3, 11)]
    assert run.lengths == [LengthTokens(9, 8, 9)]
    assert RunFacts({}).timeline == []


def test_the_label_below_the_threshold_is_one_of_the_labels() -> None:
    task = {"labels": ["a", "b"]}
    assert RunFacts({"task": task, "flags": {"abstain": "other"}}).labels == ("a", "b", "other")
    assert RunFacts({"task": task | {"abstain": "a"}}).labels == ("a", "b")
    assert RunFacts({"flags": {"abstain": "other"}}).labels == ()
