"""Parquet out: the columns and values of the JSONL record, whole or not at all."""

import errno
import gc
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slm_runtime import writers_parquet
from slm_runtime.errors import InputError, OutputError
from slm_runtime.readers import open_tickets
from slm_runtime.records import Prediction, Ticket
from slm_runtime.writers import open_output
from slm_runtime.writers_parquet import SCHEMA, parquet_writing

LABELLED = Prediction(
    0,
    "007",
    label="billing",
    score=0.75,
    margin=1.0986122886681098,
    scores={"billing": 0.75, "é, 😀": 0.25},
    label_mass=1e-300,
    num_tokens=41,
    truncated=True,
    rechecked=True,
)
FAILED = Prediction(1, None, error="line 3: empty text")
ABSTAINED = Prediction(2, "", score=1.0, scores={"": 1.0}, num_tokens=7)


def write(path: Path, predictions: Sequence[Prediction], *, overwrite: bool = False) -> None:
    with open_output(path, columns=(), overwrite=overwrite) as writer:
        for prediction in predictions:
            writer.write(Ticket(prediction.row, prediction.id, "a"), prediction)
            writer.flush()


def read(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist(maps_as_pydicts="strict")


def test_parquet_holds_what_jsonl_holds(tmp_path: Path) -> None:
    predictions = [LABELLED, FAILED, ABSTAINED]
    for name in ("o.parquet", "o.jsonl"):
        write(tmp_path / name, predictions)
    from_jsonl = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    from_parquet = read(tmp_path / "o.parquet")
    assert from_parquet == from_jsonl
    assert [list(record) for record in from_parquet] == [list(record) for record in from_jsonl]


def test_columns_have_the_types_that_are_documented(tmp_path: Path) -> None:
    write(tmp_path / "o.PARQUET", [LABELLED])
    (tmp_path / "o.PARQUET").rename(tmp_path / "o")
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "o")}
    assert types == {
        "id": "string",
        "row": "int64",
        "label": "string",
        "score": "double",
        "margin": "double",
        "scores": "map<string, double ('scores')>",
        "label_mass": "double",
        "num_tokens": "int32",
        "truncated": "bool",
        "rechecked": "bool",
        "error": "string",
    }
    group = pq.ParquetFile(tmp_path / "o").metadata.row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}
    assert "RLE_DICTIONARY" in encodings["label"]
    assert "RLE_DICTIONARY" in encodings["scores.key_value.key"]


@pytest.mark.parametrize(
    ("ticket_id", "text"), [("007", "007"), (7, "7"), (1.5, "1.5"), (True, "true"), (2**70, str(2**70)), (None, None)]
)
def test_ids_are_text(tmp_path: Path, ticket_id: str | float | None, text: str | None) -> None:
    write(tmp_path / "o.parquet", [Prediction(0, ticket_id)])
    assert read(tmp_path / "o.parquet")[0]["id"] == text


def test_an_output_is_an_input(tmp_path: Path) -> None:
    write(tmp_path / "o.parquet", [LABELLED, FAILED])
    with open_tickets(tmp_path / "o.parquet", text_column="label", all_columns=True) as reader:
        first, second = reader
    assert (first.id, first.text, first.fields["score"]) == ("007", "billing", "0.75")
    assert second.error == "missing text: 'label' is null"
    assert "scores" not in reader.columns


def test_an_output_without_rows_has_the_columns(tmp_path: Path) -> None:
    write(tmp_path / "o.parquet", [])
    table = pq.read_table(tmp_path / "o.parquet")
    assert (table.num_rows, table.schema.names) == (0, SCHEMA.names)


@pytest.mark.parametrize(
    ("limit", "num_scores", "sizes"), [("GROUP_ROWS", 0, [10, 10, 3]), ("GROUP_SCORES", 3, [4, 4, 4, 4, 4, 3])]
)
def test_row_groups_are_written_when_they_are_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, num_scores: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(writers_parquet, limit, 10)
    scores = {str(label): 0.5 for label in range(num_scores)}
    write(tmp_path / "o.parquet", [Prediction(row, None, scores=scores) for row in range(23)])
    file = pq.ParquetFile(tmp_path / "o.parquet", page_checksum_verification=True)
    assert [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)] == sizes
    assert file.read().column("row").to_pylist() == list(range(23))


def test_c21_half_a_surrogate_pair_does_not_stop_the_job(tmp_path: Path) -> None:
    half = "half \ud83d"
    write(tmp_path / "o.parquet", [Prediction(0, half, label=half, scores={half: 1.0}, error=half)])
    (record,) = read(tmp_path / "o.parquet")
    assert {record["id"], record["label"], record["error"], *record["scores"]} == {"half \ufffd"}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", ["score", "margin", "label_mass", "scores"])
def test_nan_and_infinity_are_never_written(tmp_path: Path, place: str, number: float) -> None:
    bad = replace(LABELLED, **{place: {"billing": number} if place == "scores" else number})
    with pytest.raises(ValueError, match="row 0 has a score that is not a finite number"):
        write(tmp_path / "o.parquet", [bad])
    assert list(tmp_path.iterdir()) == []


@contextmanager
def nothing_said_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails when an object complains on stderr, where nobody can catch it, while it is collected."""
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    yield
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    monkeypatch.setattr(writers_parquet, "GROUP_ROWS", 1)
    path = tmp_path / "o.parquet"
    path.write_text("old")

    def fail_half_way() -> None:
        with open_output(path, columns=(), overwrite=True) as writer:
            writer.write(Ticket(0, None, "a"), Prediction(0, None))
            assert path.read_text() == "old"
            raise error

    with nothing_said_later(monkeypatch), pytest.raises(error):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "o.parquet"
    path.write_text("old")
    with pytest.raises(OutputError, match=r"exists already.*--overwrite"):
        open_output(path, columns=())
    write(path, [LABELLED], overwrite=True)
    assert [record["label"] for record in read(path)] == ["billing"]


class FullDisk(io.RawIOBase):
    """A stream that has room for `room` bytes."""

    def __init__(self, room: int) -> None:
        self._room = room

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)


@pytest.mark.parametrize("room", [0, 4, 100, 2000])
def test_a_full_disk_is_an_output_error_that_names_the_path(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers_parquet, "GROUP_ROWS", 1)

    def fill() -> None:
        with parquet_writing(nullcontext(FullDisk(room)), "o.parquet") as writer:
            for row in range(3):
                writer.write(Ticket(row, None, "a"), Prediction(row, None))

    expected = r"o\.parquet: cannot be written: No space left on device"
    with nothing_said_later(monkeypatch), pytest.raises(OutputError, match=expected):
        fill()


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "o.parquet")
    with pytest.raises(OutputError, match=r"o\.parquet: is no regular file, which Parquet needs; .*or write JSONL"):
        open_output(tmp_path / "o.parquet", columns=())


def test_without_pyarrow_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"writing Parquet needs pyarrow .*pip install 'slm-runtime\[parquet\]'"):
        open_output(tmp_path / "o.parquet", columns=())
    assert list(tmp_path.iterdir()) == []
