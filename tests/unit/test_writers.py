"""Predictions out: whole or not at all, valid UTF-8, and nothing of the input overwritten."""

import csv
import io
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from slm_runtime.errors import OutputError
from slm_runtime.readers import open_tickets
from slm_runtime.records import Prediction, Ticket
from slm_runtime.writers import open_output

TICKET = Ticket(0, "7", "a", fields={"id": "7", "text": "a"})
PREDICTION = Prediction(0, "7", label="billing", score=0.75, margin=1.5)


def write_one(
    path: Path | str,
    ticket: Ticket = TICKET,
    prediction: Prediction = PREDICTION,
    columns: tuple[str, ...] = (),
    *,
    overwrite: bool = False,
) -> None:
    with open_output(path, columns=columns, overwrite=overwrite) as writer:
        writer.write(ticket, prediction)


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("o.csv", ("id", "text"), "id,text,label,score,margin,error\n7,a,billing,0.75,1.5,\n"),
        ("o.tsv", ("id", "text"), "id\ttext\tlabel\tscore\tmargin\terror\n7\ta\tbilling\t0.75\t1.5\t\n"),
        ("o.csv", (), "id,row,label,score,margin,error\n7,0,billing,0.75,1.5,\n"),
        ("o.JSONL", ("id", "text"), PREDICTION.to_json() + "\n"),
    ],
)
def test_the_ending_decides_the_format(tmp_path: Path, name: str, columns: tuple[str, ...], expected: str) -> None:
    write_one(tmp_path / name, columns=columns)
    assert (tmp_path / name).read_bytes().decode() == expected
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_columns_of_the_input_keep_their_names_and_values(tmp_path: Path) -> None:
    fields = {"label": "gold", "error": "none", "predicted_error": "x"}
    write_one(tmp_path / "o.csv", Ticket(0, None, "a", fields=fields), columns=tuple(fields))
    header, row = csv.reader((tmp_path / "o.csv").read_text().splitlines())
    assert header == [*fields, "predicted_label", "score", "margin", "predicted_predicted_error"]
    assert row == ["gold", "none", "x", "billing", "0.75", "1.5", ""]


def test_c23_csv_written_is_csv_read(tmp_path: Path) -> None:
    odd = 'one\r\ntwo\rthree, "four"; \x00 \u2028 é😀'
    label = "with, comma\nand line"
    write_one(
        tmp_path / "o.csv",
        Ticket(0, "7", odd, fields={"id": "7", "text": odd}),
        Prediction(0, "7", label=label),
        columns=("id", "text"),
    )
    with open_tickets(tmp_path / "o.csv") as reader:
        (ticket,) = reader
    assert (ticket.text, ticket.fields["label"]) == (odd, label)


@pytest.mark.parametrize(
    ("ticket_id", "cell"), [(None, ""), (True, "true"), (1.5, "1.5"), (2**70, str(2**70)), ("007", "007")]
)
def test_json_ids_in_csv(tmp_path: Path, ticket_id: str | float | None, cell: str) -> None:
    write_one(tmp_path / "o.csv", Ticket(0, ticket_id, "a"), Prediction(0, ticket_id))
    assert (tmp_path / "o.csv").read_text().splitlines()[1] == f"{cell},0,,,,"


@pytest.mark.parametrize("name", ["o.csv", "o.jsonl"])
def test_c21_output_is_valid_utf8_whatever_it_holds(tmp_path: Path, name: str) -> None:
    half = "half \ud83d"
    write_one(tmp_path / name, Ticket(0, half, half, fields={"id": half}), Prediction(0, half), columns=("id",))
    assert "half \ufffd" in (tmp_path / name).read_bytes().decode("utf-8")


@pytest.mark.parametrize("name", ["o.csv", "o.jsonl"])
def test_nan_is_never_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_one(tmp_path / name, prediction=Prediction(0, "7", score=float("nan")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, BrokenPipeError])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text("old")

    def fail_half_way() -> None:
        with open_output(path, columns=(), overwrite=True) as writer:
            writer.write(TICKET, PREDICTION)
            writer.flush()
            assert path.read_text() == "old"
            raise error

    with pytest.raises(error):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    real = tmp_path / "real.jsonl"
    real.write_text("old")
    link = tmp_path / "link.jsonl"
    link.symlink_to(real)
    with pytest.raises(OutputError, match=r"exists already.*--overwrite"):
        open_output(link, columns=())
    write_one(link, overwrite=True)
    assert link.is_symlink()
    assert json.loads(real.read_text())["label"] == "billing"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent/o.csv", "there is no folder"),
        ("o.xlsx", "'.xlsx' says no format; expected .jsonl"),
        ("o", "says no format"),
        ("", "is a folder"),
        ("x" * 300 + ".csv", "name too long"),
    ],
)
def test_a_name_that_cannot_be_written_is_an_output_error(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(OutputError, match=reason):
        write_one(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flush", [False, True])
def test_a_full_disk_is_an_output_error_that_names_the_path(flush: bool) -> None:
    def write_and_maybe_flush() -> None:
        with open_output("/dev/full", columns=()) as writer:
            writer.write(TICKET, PREDICTION)
            if flush:
                writer.flush()

    with pytest.raises(OutputError, match="/dev/full: cannot be written: No space left on device"):
        write_and_maybe_flush()
    assert Path("/dev/full").is_char_device()


def test_a_fifo_is_written_to_directly(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    received: list[bytes] = []
    consumer = threading.Thread(target=lambda: received.append(fifo.read_bytes()), daemon=True)
    consumer.start()
    write_one(fifo)
    consumer.join(timeout=5)
    assert received == [PREDICTION.to_json().encode() + b"\n"]
    assert fifo.is_fifo()


def test_c29_stdout_gets_utf8_jsonl_at_each_flush_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=io.BufferedWriter(raw)))
    with open_output("-", columns=("id", "text")) as writer:
        writer.write(TICKET, Prediction(0, "é"))
        assert raw.getvalue() == b""
        writer.flush()
        assert json.loads(raw.getvalue())["id"] == "é"
    assert not sys.stdout.buffer.closed


def test_c29_a_broken_pipe_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb", buffering=0) as stream:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=stream))
        with pytest.raises(BrokenPipeError):
            write_one("-")
