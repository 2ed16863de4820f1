"""Tickets in: a file or standard input becomes a stream of `Ticket`, one per row, bad rows included."""

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self, cast

from slm_runtime.errors import InputError
from slm_runtime.extra import require
from slm_runtime.lines import PhysicalLines
from slm_runtime.live_input import PollingInput
from slm_runtime.readers_csv import read_csv
from slm_runtime.readers_jsonl import jsonl_tickets
from slm_runtime.records import Ticket

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
PARQUET = ".parquet"
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class TicketSource(Protocol):
    """What a reader holds beside its tickets: two counts, the pipe if it is one, and the end."""

    num_blank: int
    num_replaced: int
    live: PollingInput | None

    def close(self) -> None: ...


@dataclass(frozen=True)
class StoredFile:
    """A file that is in no local folder: what messages call it, and how it is opened."""

    name: str
    open: Callable[[], BinaryIO]


class TicketReader:
    """The tickets of one input, once, in input order; a context manager that closes the input.

    `columns` are the columns that every `Ticket.fields` holds for outputs that repeat them: those of CSV and TSV, of
    Parquet when all are asked for, else (). Iterating raises InputError where the input
    is damaged beyond one row.
    """

    def __init__(self, source: TicketSource, tickets: Iterator[Ticket], columns: tuple[str, ...] = ()) -> None:
        self.columns = columns
        self._source = source
        self._tickets = tickets

    @property
    def num_blank(self) -> int:
        """Blank lines skipped so far; they are not rows."""
        return self._source.num_blank

    @property
    def num_replaced(self) -> int:
        """Tickets so far in which half a surrogate pair was replaced by U+FFFD."""
        return self._source.num_replaced

    @property
    def is_live(self) -> bool:
        """True for a pipe, a terminal and the like: tickets may come late, and only once."""
        return self._source.live is not None

    def stop(self) -> None:
        """End a live input now, also while another thread is waiting for its next ticket."""
        if self._source.live is not None:
            self._source.live.stop()

    def __iter__(self) -> Iterator[Ticket]:
        return self._tickets

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.close()


def open_tickets(
    path: str | Path | StoredFile,
    *,
    text_column: str = "text",
    id_column: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    format: str | None = None,  # noqa: A002 - named after the flag
    keep_columns: Sequence[str] = (),
    all_columns: bool = False,
) -> TicketReader:
    """A reader of a .csv, .tsv, .jsonl or .ndjson file, or one of these with .gz, or .parquet; `-` is standard input.

    `format` (csv, tsv, jsonl or parquet) overrides the ending; standard input is JSONL without it. Text is UTF-8, or
    UTF-16 where a file starts with its byte order mark, or `encoding`; never the locale's. The CSV delimiter
    is found from the header among comma, semicolon, tab. Without `id_column`, `id` is used where it exists.

    A row that cannot be classified is a ticket with an `error`: bad bytes, bad JSON, wrong number of fields,
    missing text, or "empty text" where nothing but white space is left. A record may hold
    `lines.MAX_RECORD_CHARS` characters.

    The values of `keep_columns` are in `Ticket.fields` as text: strings as they are, null as "", others as in JSON,
    decimals and times as Arrow prints them. CSV and TSV keep all columns always, Parquet those of single values with
    `all_columns`. A key that a JSON object does not have is ""; a column that Parquet does not have is refused.

    Raises: InputError if the input cannot be opened, has no known ending, or its header cannot be used.
    """
    open_stream = path.open if isinstance(path, StoredFile) else None
    path = Path(path.name if isinstance(path, StoredFile) else path)
    kind = _format(path, format)
    if kind == "parquet":
        _check_parquet(path, encoding or delimiter)
        from slm_runtime.readers_parquet import open_parquet

        source, chosen = open_parquet(
            path,
            text_column=text_column,
            id_column=id_column,
            keep_columns=keep_columns,
            all_columns=all_columns,
            open_stream=open_stream,
        )
        return TicketReader(source, source.tickets(chosen), chosen.fields if all_columns else ())
    lines = _open_lines(path, encoding, open_stream)
    if kind == "jsonl":
        tickets = jsonl_tickets(lines, text_column=text_column, id_column=id_column, keep_columns=keep_columns)
        return TicketReader(lines, tickets)
    if kind == "tsv" and delimiter is None:
        delimiter = "\t"
    try:
        columns, tickets = read_csv(lines, text_column=text_column, id_column=id_column, delimiter=delimiter)
    except InputError:
        lines.close()
        raise
    return TicketReader(lines, tickets, columns)


def _format(path: Path, wanted: str | None) -> str:
    known = [*sorted(set(FORMATS.values())), "parquet"]
    if wanted is not None and wanted not in known:
        raise InputError(f"input format {wanted!r}, expected one of {', '.join(known)}")
    if wanted is not None or str(path) == "-":
        return wanted or "jsonl"
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending == PARQUET:
        return "parquet"
    if ending not in FORMATS:
        raise InputError(
            f"{path}: the ending {ending!r} says no format; expected {', '.join(FORMATS)}, or one of these "
            f"with .gz, or {PARQUET}. Rename the file or give its format"
        )
    return FORMATS[ending]


def _check_parquet(path: Path, text_option: str | None) -> None:
    """Refuse what is no Parquet file that can be read, as far as its name says."""
    if str(path) == "-" or (path.exists() and not (path.is_file() or path.is_dir())):
        name = "standard input" if str(path) == "-" else path
        raise InputError(f"{name}: Parquet is read from its end; give a regular file, or pipe JSONL")
    if path.suffix.lower() == ".gz":
        raise InputError(f"{path}: gzipped; Parquet is compressed inside, gunzip the file first")
    if text_option is not None:
        raise InputError(f"{path}: Parquet has no encoding and no delimiter; leave out --encoding and --delimiter")
    require("pyarrow", extra="parquet", purpose=f"{path}: reading Parquet")


def is_ticket_file(name: str) -> bool:
    """True for a name whose ending says a format."""
    name = name.lower()
    return name.endswith(PARQUET) or Path(name.removesuffix(".gz")).suffix in FORMATS


def _open_lines(path: Path, encoding: str | None, open_stream: Callable[[], BinaryIO] | None) -> PhysicalLines:
    if str(path) == "-":
        pipe = PollingInput(sys.stdin.buffer, owns_stream=False)
        return PhysicalLines(io.BufferedReader(pipe), name="standard input", encoding=encoding or "utf-8", live=pipe)
    live: PollingInput | None = None
    try:
        stream: io.BufferedReader | gzip.GzipFile
        if open_stream is not None:
            stream = io.BufferedReader(cast("io.RawIOBase", open_stream()))
            if path.suffix.lower() == ".gz":
                stream = gzip.GzipFile(fileobj=stream)
        elif path.suffix.lower() == ".gz":
            stream = gzip.GzipFile(path)
        else:
            stream = path.open("rb")
            if not path.is_file():
                live = PollingInput(stream, owns_stream=True)
                stream = io.BufferedReader(live)
        start = stream.peek(2)[:2]
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    encoding = encoding or _BYTE_ORDER_MARKS.get(start, "utf-8")
    return PhysicalLines(stream, name=str(path), encoding=encoding, live=live)
