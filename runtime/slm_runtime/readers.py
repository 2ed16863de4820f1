"""Tickets in: a file or standard input becomes a stream of `Ticket`, one per row, bad rows included."""

import codecs
import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from slm_runtime.errors import InputError
from slm_runtime.lines import PhysicalLines
from slm_runtime.readers_csv import read_csv
from slm_runtime.readers_jsonl import jsonl_tickets
from slm_runtime.records import Ticket

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class TicketReader:
    """The tickets of one input, once, in input order; a context manager that closes the input.

    `columns` are the column names of a CSV or TSV input, else (). Iterating raises InputError where the input
    is damaged beyond one row.
    """

    def __init__(self, lines: PhysicalLines, tickets: Iterator[Ticket], columns: tuple[str, ...] = ()) -> None:
        self.columns = columns
        self._lines = lines
        self._tickets = tickets

    @property
    def num_blank(self) -> int:
        """Blank lines skipped so far; they are not rows."""
        return self._lines.num_blank

    @property
    def num_replaced(self) -> int:
        """Tickets so far in which half a surrogate pair was replaced by U+FFFD."""
        return self._lines.num_replaced

    def __iter__(self) -> Iterator[Ticket]:
        return self._tickets

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()


def open_tickets(
    path: str | Path,
    *,
    text_column: str = "text",
    id_column: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    format: str | None = None,  # noqa: A002 - named after the flag
) -> TicketReader:
    """A reader of a .csv, .tsv, .jsonl or .ndjson file, or one of these with .gz; `-` is standard input.

    `format` (csv, tsv or jsonl) overrides the ending; standard input is JSONL without it. Text is UTF-8, or
    UTF-16 where a file starts with its byte order mark, or `encoding`; never the locale's. The CSV delimiter
    is found from the header among comma, semicolon, tab. Without `id_column`, `id` is used where it exists.

    A row that cannot be classified is a ticket with an `error`: bad bytes, bad JSON, wrong number of fields,
    missing text, or "empty text" where nothing but white space is left. A record may hold
    `lines.MAX_RECORD_CHARS` characters.

    Raises: InputError if the input cannot be opened, has no known ending, or its header cannot be used.
    """
    path = Path(path)
    kind = _format(path, format)
    lines = _open_lines(path, encoding)
    if kind == "jsonl":
        return TicketReader(lines, jsonl_tickets(lines, text_column=text_column, id_column=id_column))
    if kind == "tsv" and delimiter is None:
        delimiter = "\t"
    try:
        columns, tickets = read_csv(lines, text_column=text_column, id_column=id_column, delimiter=delimiter)
    except InputError:
        lines.close()
        raise
    return TicketReader(lines, tickets, columns)


def _format(path: Path, wanted: str | None) -> str:
    known = sorted(set(FORMATS.values()))
    if wanted is not None and wanted not in known:
        raise InputError(f"input format {wanted!r}, expected one of {', '.join(known)}")
    if wanted is not None or str(path) == "-":
        return wanted or "jsonl"
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending not in FORMATS:
        raise InputError(
            f"{path}: the ending {ending!r} says no format; expected {', '.join(FORMATS)}, or one of these "
            "with .gz. Rename the file or give its format"
        )
    return FORMATS[ending]


def _open_lines(path: Path, encoding: str | None) -> PhysicalLines:
    if str(path) == "-":
        name = "standard input"
        return PhysicalLines(sys.stdin.buffer, name=name, encoding=encoding or "utf-8", owns_stream=False)
    try:
        stream = gzip.GzipFile(path) if path.suffix.lower() == ".gz" else path.open("rb")
        start = stream.peek(2)[:2]
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    encoding = encoding or _BYTE_ORDER_MARKS.get(start, "utf-8")
    return PhysicalLines(stream, name=str(path), encoding=encoding, owns_stream=True)
