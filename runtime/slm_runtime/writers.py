"""Predictions out: JSONL, CSV, TSV or Parquet by the ending of the name, whole or not at all."""

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from slm_runtime.errors import OutputError
from slm_runtime.extra import require
from slm_runtime.records import Prediction, Ticket, TicketId
from slm_runtime.ticket_text import replace_lone_surrogates

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_HANDLE_FOLDERS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
_RESULT_COLUMNS = ("label", "score", "margin", "error")
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?\d[\d.,]*(?:[eE][+-]?\d+)?")


class PredictionWriter(Protocol):
    """Writes one record per call. Raises OutputError, or BrokenPipeError as it is."""

    def write(self, ticket: Ticket, prediction: Prediction) -> None:
        """Append the record of one row; NaN and infinity are refused with ValueError, they are our bug."""

    def flush(self) -> None:
        """Hand over what is complete so far to the operating system."""


class LineWriter:
    """Writes one record per call, as UTF-8 bytes."""

    def __init__(self, stream: IO[bytes], name: str, format_record: Callable[[Ticket, Prediction], str]) -> None:
        self._stream = stream
        self._name = name
        self._format_record = format_record

    def write(self, ticket: Ticket, prediction: Prediction) -> None:
        assert ticket.row == prediction.row, f"row {prediction.row} answers ticket {ticket.row}"
        self.write_line(self._format_record(ticket, prediction))

    def write_line(self, line: str) -> None:
        with _reported(self._name):
            self._stream.write(replace_lone_surrogates(line).encode("utf-8"))

    def flush(self) -> None:
        with _reported(self._name):
            self._stream.flush()


def open_output(
    path: str | Path, *, columns: Sequence[str], overwrite: bool = False, spreadsheet_safe: bool = False
) -> AbstractContextManager[PredictionWriter]:
    """A context manager that yields the writer of `path`; `-` is standard output in JSONL.

    A regular file appears under its name when the context ends well, complete and synced; otherwise the name
    keeps what it had. Special files (devices, pipes) are appended to directly, in JSONL unless their ending
    says otherwise. CSV and TSV repeat `columns`, the input's (none: id, row), and append label, score,
    margin, error; a name that the input already has gets the prefix `predicted_`, as often as needed.
    Parquet has the columns of `writers_parquet.SCHEMA`, and is written to a regular file only.
    With `spreadsheet_safe` no CSV or TSV cell is taken for a formula: those that could be begin with an apostrophe.

    Raises: OutputError at once as `check_output` does; later when the file cannot be written.
    """
    kind = check_output(path, overwrite=overwrite)
    target = Path(path)
    if str(target) == "-":
        return writing(_standard_output(), "standard output", kind, columns, spreadsheet_safe=spreadsheet_safe)
    destination = whole_file(target) if is_regular(target) else _direct_file(target)
    return writing(destination, str(target), kind, columns, spreadsheet_safe=spreadsheet_safe)


def writing(
    destination: AbstractContextManager[IO[bytes]],
    name: str,
    kind: str,
    columns: Sequence[str],
    *,
    spreadsheet_safe: bool = False,
) -> AbstractContextManager[PredictionWriter]:
    """As `open_output`, to any stream, in the format `kind`; errors are those of `name`."""
    if kind == "parquet":
        from slm_runtime.writers_parquet import parquet_writing

        return parquet_writing(destination, name)
    return _writing_lines(destination, name, kind, columns, spreadsheet_safe=spreadsheet_safe)


def check_output(path: str | Path, *, overwrite: bool) -> str:
    """The format of an output that can be opened, as far as one can tell without opening it.

    Raises: OutputError for an unknown ending, a folder, a missing parent, or an existing file without `overwrite`.
    """
    target = Path(path)
    if str(target) == "-":
        return "jsonl"
    with _reported(str(target)):
        regular, exists = is_regular(target), target.exists()
        if target.is_dir():
            raise OutputError(f"{target}: is a folder, expected a file name")
        if not target.parent.is_dir():
            raise OutputError(f"{target}: cannot be written: there is no folder {target.parent}; make it first")
    kind = FORMATS.get(target.suffix.lower(), None if regular else "jsonl")
    if kind is None:
        raise OutputError(f"{target}: the ending {target.suffix!r} says no format; expected {', '.join(FORMATS)}")
    if exists and regular and not overwrite:
        raise OutputError(f"{target}: exists already; give another name, or --overwrite to replace it")
    if kind == "parquet":
        if not regular:
            raise OutputError(f"{target}: is no regular file, which Parquet needs; give another name, or write JSONL")
        require("pyarrow", extra="parquet", purpose=f"{target}: writing Parquet")
    return kind


def is_regular(path: Path) -> bool:
    """True for a name that is to hold a file of its own: not standard output, no device, pipe or handle."""
    return str(path) != "-" and not _is_special(path)


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
def _writing_lines(
    destination: AbstractContextManager[IO[bytes]],
    name: str,
    kind: str,
    columns: Sequence[str],
    *,
    spreadsheet_safe: bool,
) -> Iterator[PredictionWriter]:
    with destination as stream:
        if kind == "jsonl":
            yield LineWriter(stream, name, lambda _, prediction: prediction.to_json() + "\n")
            return
        delimiter = "\t" if kind == "tsv" else ","

        def line(cells: list[str]) -> str:
            return _csv_line([harmless(cell) for cell in cells] if spreadsheet_safe else cells, delimiter)

        writer = LineWriter(stream, name, lambda *row: line(_csv_cells(columns, *row)))
        writer.write_line(line(_csv_header(columns)))
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
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes get the name `path`, synced, when the context ends well; until then it keeps what it had.

    Raises:
        OutputError: it cannot be written, or another process is writing it.
    """
    final = Path(os.path.realpath(path))  # a link stays a link
    part = final.with_name(f".{final.name}.part")
    with _reported(str(path)):
        stream = _open_alone(part, path)
    try:
        yield stream
        with _reported(str(path)):
            stream.flush()
            os.fsync(stream.fileno())
            if os.name == "nt":  # where no open file can be renamed; elsewhere the lock is held until it has its name
                stream.close()
            part.replace(final)
            stream.close()
            _sync_folder(final.parent)
    except BaseException:
        with suppress(OSError):
            stream.close()
        with suppress(OSError):
            part.unlink()
        raise


def write_file(path: Path, content: bytes) -> None:
    """`content` under the name `path`, whole or not at all. Raises OutputError."""
    with whole_file(path) as stream, _reported(str(path)):
        stream.write(content)


def _open_alone(part: Path, path: Path) -> IO[bytes]:
    """`part`, emptied: left over by a killed run, perhaps, but not in use by another one."""
    stream = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b")
    try:
        _lock(stream)
        if not os.path.samestat(os.fstat(stream.fileno()), part.stat()):  # renamed while we waited for the lock
            raise BlockingIOError
        stream.truncate()
    except (BlockingIOError, FileNotFoundError) as error:
        stream.close()
        raise OutputError(f"{path}: another slm-run is writing it; wait for it, or give another name") from error
    except BaseException:
        stream.close()
        raise
    return stream


def _lock(stream: IO[bytes]) -> None:
    """Raise BlockingIOError when another process has the file; does nothing where files cannot be locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system lets a folder be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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


def harmless(cell: str) -> str:
    """The cell with an apostrophe in front where a spreadsheet would take it for a formula; numbers stay."""
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def _csv_line(cells: list[str], delimiter: str) -> str:
    buffer = io.StringIO()
    # Python 3.11 quotes a carriage return only if the line terminator holds one.
    csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"
