"""CSV and TSV to tickets: every field as written, and no row that a stray quote has swallowed."""

import csv
import re
from collections.abc import Iterator
from itertools import chain

from slm_runtime.errors import InputError
from slm_runtime.lines import MAX_RECORD_CHARS, PhysicalLines, RecordTooLongError
from slm_runtime.records import Ticket
from slm_runtime.ticket_text import is_blank

DELIMITERS = ",;\t"
# What spreadsheets write above the header for each other.
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?[\r\n]*', re.IGNORECASE)


def read_csv(
    lines: PhysicalLines, *, text_column: str, id_column: str | None, delimiter: str | None
) -> tuple[tuple[str, ...], Iterator[Ticket]]:
    """The columns, read at once, and the tickets, read as they are asked for.

    Blank lines are counted in `lines.num_blank`. A record ends at LF or CRLF; a carriage return may be in a
    text, inside quotes.

    Raises: InputError, also while iterating: no header, a bad byte in it, a missing or doubled column, a
    quote that is never closed, a carriage return outside quotes.
    """
    first = next(lines, None)
    if first is None:
        raise InputError(f"{lines.name}: empty, expected a header line with the column {text_column!r}")
    if named := _SEPARATOR_LINE.fullmatch(first):
        delimiter = delimiter or named[1]
        lines.start_record()
        first = next(lines, "")
    delimiter = delimiter or _sniff_delimiter(first, text_column)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InputError(f"{lines.name}: delimiter {delimiter!r}, expected one character such as ',' or ';'")
    records = _records(lines, first, delimiter)
    columns = tuple(next(records, ()))
    if lines.bad_byte:
        raise InputError(f"{lines.name}: {lines.bad_byte}")
    _check_columns(columns, lines.name, delimiter, [text_column, *([id_column] if id_column else [])])
    return columns, _tickets(records, lines, columns, text_column=text_column, id_column=id_column or "id")


def _sniff_delimiter(header: str, text_column: str) -> str:
    def fit(delimiter: str) -> tuple[bool, int]:
        columns = [column.strip('"') for column in header.rstrip("\r\n").split(delimiter)]
        return text_column in columns, len(columns)

    return max(DELIMITERS, key=fit)


def _check_columns(columns: tuple[str, ...], name: str, delimiter: str, needed: list[str]) -> None:
    seen = ", ".join(map(repr, columns))[:500]
    for column in needed:
        if column not in columns:
            raise InputError(
                f"{name}: no column {column!r}; the header, split at {delimiter!r}, has: {seen}. Give "
                "another --text-column or --id-column, or --delimiter or --encoding if the header was misread"
            )
    if doubled := sorted({column for column in columns if columns.count(column) > 1}):
        raise InputError(f"{name}: columns named twice: {doubled}; the header has: {seen}. Rename or remove one")


def _records(lines: PhysicalLines, first: str, delimiter: str) -> Iterator[list[str]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_CHARS))
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    while True:
        try:
            record = next(reader, None)
        except (csv.Error, RecordTooLongError) as error:
            raise _damage(lines, delimiter, error) from error
        if record is None:
            return
        yield record
        lines.start_record()


def _tickets(
    records: Iterator[list[str]],
    lines: PhysicalLines,
    columns: tuple[str, ...],
    *,
    text_column: str,
    id_column: str,
) -> Iterator[Ticket]:
    row = 0
    for record in records:
        if not record:
            lines.num_blank += 1
            continue
        fields = dict(zip(columns, record, strict=False))
        text = fields.get(text_column)
        error = lines.bad_byte
        if not error and (problem := _problem(record, columns, text)):
            error = f"line {lines.record_number}: {problem}"
        yield Ticket(row, fields.get(id_column), None if error else text, error, fields)
        row += 1


def _problem(record: list[str], columns: tuple[str, ...], text: str | None) -> str | None:
    if len(record) > len(columns):
        return f"{len(record)} fields, expected {len(columns)}; quote a text that holds the delimiter"
    if text is None:
        return f"missing text: {len(record)} of {len(columns)} fields"
    return "empty text" if is_blank(text) else None


def _damage(lines: PhysicalLines, delimiter: str, error: csv.Error | RecordTooLongError) -> InputError:
    record = "".join(lines.record)
    quote = _unclosed_quote(record, delimiter)
    if quote is not None:
        number = lines.record_number + record.count("\n", 0, quote)
        sign = "the record is too long" if isinstance(error, RecordTooLongError) else error
        return InputError(
            f"{lines.name}: quote opened on line {number} never closed (line {lines.number}: {sign}); "
            "close it, and double every quote inside a quoted text"
        )
    if isinstance(error, RecordTooLongError):
        return error
    return InputError(
        f"{lines.name}: line {lines.number}: a carriage return outside quotes; end lines in LF or CRLF, and "
        "quote a text that holds line breaks"
    )


def _unclosed_quote(record: str, delimiter: str) -> int | None:
    """Index of the quote that opens a field and is not followed by one that ends it."""
    closed = re.compile(rf'"[^"]*+(?:""[^"]*+)*+"(?=[{re.escape(delimiter)}\r\n]|\Z)')
    start = 0
    while start < len(record):
        if record[start] == '"':
            field = closed.match(record, start)
            if field is None:
                return start
            start = field.end()
        start = record.find(delimiter, start) + 1
        if start == 0:
            break
    return None
