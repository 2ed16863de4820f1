"""Predictions out: JSONL, CSV or TSV by the ending of the name, whole or not at all."""

import csv
import io
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

from slm_runtime.errors import OutputError
from slm_runtime.records import Prediction, Ticket, TicketId
from slm_runtime.ticket_text import replace_lone_surrogates

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}
_HANDLE_FOLDERS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
_RESULT_COLUMNS = ("label", "score", "margin", "error")


class PredictionWriter:
    """Writes one record per call, as UTF-8 bytes. Raises OutputError, or BrokenPipeError as it is."""

    def __init__(self, stream: IO[bytes], name: str, format_record: Callable[[Ticket, Prediction], str]) -> None:
        self._stream = stream
        self._name = name
        self._format_record = format_record

    def write(self, ticket: Ticket, prediction: Prediction) -> None:
        """Append the record of one row; NaN and infinity are refused with ValueError, they are our bug."""
        assert ticket.row == prediction.row, f"row {prediction.row} answers ticket {ticket.row}"
        self.write_line(self._format_record(ticket, prediction))

    def write_line(self, line: str) -> None:
        with _reported(self._name):
            self._stream.write(replace_lone_surrogates(line).encode("utf-8"))

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        with _reported(self._name):
            self._stream.flush()


def open_output(
    path: str | Path, *, columns: Sequence[str], overwrite: bool = False
) -> AbstractContextManager[PredictionWriter]:
    """A context manager that yields the writer of `path`; `-` is standard output in JSONL.

    A regular file appears under its name when the context ends well, complete and synced; otherwise the name
    keeps what it had. Special files (devices, pipes) are appended to directly, in JSONL unless their ending
    says otherwise. CSV and TSV repeat `columns`, the input's (none: id, row), and append label, score,
    margin, error; a name that the input already has gets the prefix `predicted_`, as often as needed.

    Raises: OutputError at once for an unknown ending, a folder, or an existing file without `overwrite`;
    later when the file cannot be written.
    """
    target = Path(path)
    if str(target) == "-":
        return _writing(_standard_output(), "standard output", "jsonl", columns)
    with _reported(str(target)):
        special = _is_special(target)
        exists = target.exists()
        if target.is_dir():
            raise OutputError(f"{target}: is a folder, expected a file name")
    kind = FORMATS.get(target.suffix.lower(), "jsonl" if special else None)
    if kind is None:
        raise OutputError(f"{target}: the ending {target.suffix!r} says no format; expected {', '.join(FORMATS)}")
    if exists and not special and not overwrite:
        raise OutputError(f"{target}: exists already; give another name, or --overwrite to replace it")
    destination = _direct_file(target) if special else _whole_file(target)
    return _writing(destination, str(target), kind, columns)


def _is_special(path: Path) -> bool:
    # A handle such as /dev/stdout may lead to a regular file, whose name is not ours to replace.
    return path.absolute().parent in _HANDLE_FOLDERS or (path.exists() and not path.is_file())


@contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"{name}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _writing(
    destination: AbstractContextManager[IO[bytes]], name: str, kind: str, columns: Sequence[str]
) -> Iterator[PredictionWriter]:
    with destination as stream:
        if kind == "jsonl":
            yield PredictionWriter(stream, name, lambda _, prediction: prediction.to_json() + "\n")
            return
        delimiter = "\t" if kind == "tsv" else ","
        writer = PredictionWriter(stream, name, lambda *row: _csv_line(_csv_cells(columns, *row), delimiter))
        writer.write_line(_csv_line(_csv_header(columns), delimiter))
        yield writer


@contextmanager
def _standard_output() -> Iterator[IO[bytes]]:
    yield sys.stdout.buffer
    with _reported("standard output"):
        sys.stdout.buffer.flush()


@contextmanager
def _direct_file(path: Path) -> Iterator[IO[bytes]]:
    with _reported(str(path)):
        stream = path.open("ab")
    try:
        yield stream
    except BaseException:
        with suppress(OSError):
            stream.close()
        raise
    with _reported(str(path)):
        stream.close()


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    final = Path(os.path.realpath(path))  # a link stays a link
    part = final.with_name(f".slm-run-{secrets.token_hex(8)}.part")
    with _reported(str(path)):
        stream = part.open("xb")
    try:
        yield stream
        with _reported(str(path)):
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
            part.replace(final)
    except BaseException:
        with suppress(OSError):
            stream.close()
        with suppress(OSError):
            part.unlink()
        raise


def _csv_header(columns: Sequence[str]) -> list[str]:
    header = list(columns) or ["id", "row"]
    for column in _RESULT_COLUMNS:
        name = column
        while name in header:
            name = f"predicted_{name}"
        header.append(name)
    return header


def _csv_cells(columns: Sequence[str], ticket: Ticket, prediction: Prediction) -> list[str]:
    source: list[TicketId] = [ticket.fields.get(column, "") for column in columns]
    results = [prediction.label, prediction.score, prediction.margin, prediction.error]
    return [_cell(value) for value in (source or [prediction.id, prediction.row]) + results]


def _cell(value: TicketId) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)


def _csv_line(cells: list[str], delimiter: str) -> str:
    buffer = io.StringIO()
    # Python 3.11 quotes a carriage return only if the line terminator holds one.
    csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"
