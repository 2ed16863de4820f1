"""Parquet to tickets: one row group after the other, some hundred rows at a time."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from slm_runtime.arrow_values import BadValue, column_values, is_text, plain_type
from slm_runtime.errors import InputError
from slm_runtime.lines import MAX_RECORD_CHARS
from slm_runtime.live_input import PollingInput
from slm_runtime.records import Ticket, TicketId
from slm_runtime.ticket_text import is_blank

BATCH_ROWS = 256
BATCH_BYTES = 8 * 2**20
READ_BYTES = 2**20


@dataclass(frozen=True)
class ParquetColumns:
    """Which columns are read: the text, the id if there is one, and those that `Ticket.fields` holds."""

    text: str
    id: str | None
    fields: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([self.text, *([] if self.id is None else [self.id]), *self.fields]))


class ParquetInput:
    """An open Parquet file. Raises InputError when it is damaged, also in the middle.

    It has no blank lines, and nothing is replaced in a text: what is not UTF-8 is that row's error.
    """

    num_blank = 0
    num_replaced = 0
    live: PollingInput | None = None

    def __init__(self, path: Path, open_stream: Callable[[], BinaryIO] | None = None) -> None:
        self.name = str(path)
        self._num_read = 0
        try:
            self._stream = path.open("rb") if open_stream is None else open_stream()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        try:
            with self._reported():
                # Without pre_buffer, pages are read when their rows are asked for.
                self._file = pq.ParquetFile(
                    self._stream, pre_buffer=False, buffer_size=READ_BYTES, page_checksum_verification=True
                )
                self.schema = self._file.schema_arrow
                self._check_num_rows()
        except InputError:
            self.close()
            raise

    def close(self) -> None:
        self._stream.close()

    def _check_num_rows(self) -> None:
        metadata = self._file.metadata
        held = sum(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        if held != metadata.num_rows:
            raise self._damaged(f"its row groups hold {held} rows, the file says {metadata.num_rows}")

    def tickets(self, columns: ParquetColumns) -> Iterator[Ticket]:
        """One ticket per row, in order; a row that cannot be classified has an `error`."""
        row = 0
        for values in self._batches(columns.names):
            size = len(values[columns.text])
            ids = [None] * size if columns.id is None else values[columns.id]
            for index in range(size):
                fields = {name: _field(values[name][index]) for name in columns.fields}
                yield _ticket(row, ids[index], values[columns.text][index], fields, columns.text)
                row += 1

    def _batches(self, names: list[str]) -> Iterator[dict[str, list[TicketId | BadValue]]]:
        for index in range(self._file.metadata.num_row_groups):
            with self._reported():
                group = self._file.metadata.row_group(index)
                batches = self._file.iter_batches(
                    batch_size=_batch_rows(group), row_groups=[index], columns=names, use_threads=False
                )
            num_rows = 0
            while True:
                with self._reported():
                    batch = next(batches, None)
                    if batch is None:
                        break
                    values = {name: column_values(batch.column(name)) for name in names}
                num_rows += batch.num_rows
                self._num_read += batch.num_rows
                yield values
            if num_rows != group.num_rows:
                raise self._damaged(f"row group {index + 1} holds {num_rows} rows, the file says {group.num_rows}")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged(" ".join(str(error).split()).rstrip(".")) from error

    def _damaged(self, reason: str) -> InputError:
        where = f" beyond row {self._num_read}" if self._num_read else ""
        return InputError(f"{self.name}: cannot be read{where}: {reason}; give a whole Parquet file")


def open_parquet(
    path: Path,
    *,
    text_column: str,
    id_column: str | None,
    keep_columns: Sequence[str],
    all_columns: bool,
    open_stream: Callable[[], BinaryIO] | None = None,
) -> tuple[ParquetInput, ParquetColumns]:
    """The open file and its columns to read. Raises InputError if the file or one of the columns cannot be used."""
    source = ParquetInput(path, open_stream)
    try:
        _check_columns(source, text_column, [*([] if id_column is None else [id_column]), *keep_columns])
        single = [field.name for field in source.schema if not pa.types.is_nested(plain_type(field.type))]
        if nested := sorted(set(keep_columns) - set(single)):
            raise InputError(f"{path}: the columns {nested} hold lists or structs, expected single values")
    except InputError:
        source.close()
        raise
    found_id = id_column or ("id" if "id" in source.schema.names else None)
    return source, ParquetColumns(text_column, found_id, tuple(single if all_columns else keep_columns))


def _check_columns(source: ParquetInput, text_column: str, others: list[str]) -> None:
    names = source.schema.names
    seen = ", ".join(f"{field.name!r} {field.type}" for field in source.schema)[:500]
    for column in [text_column, *others]:
        if column not in names:
            raise InputError(
                f"{source.name}: no column {column!r}; the file has: {seen}. Give another --text-column or --id-column"
            )
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{source.name}: columns named twice: {doubled}; the file has: {seen}. Rename or remove one")
    kind = source.schema.field(text_column).type
    if not is_text(kind):
        raise InputError(
            f"{source.name}: the text column {text_column!r} is {kind}, expected string; the file has: {seen}. Give "
            "another --text-column, or cast this one to string where the file is written"
        )


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """Fewer rows where they are long."""
    row_bytes = group.total_byte_size // max(group.num_rows, 1) + 1
    return max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))


def _ticket(
    row: int, ticket_id: TicketId | BadValue, text: TicketId | BadValue, fields: dict[str, str], text_column: str
) -> Ticket:
    known_id = None if isinstance(ticket_id, BadValue) or _is_not_finite(ticket_id) else ticket_id
    error = _id_problem(ticket_id) or _text_problem(text, text_column)
    return Ticket(row, known_id, text if error is None and isinstance(text, str) else None, error, fields)


def _id_problem(ticket_id: TicketId | BadValue) -> str | None:
    if isinstance(ticket_id, BadValue):
        return f"the id is {ticket_id.problem}, expected a string, a number, a boolean or null"
    return f"the id {ticket_id} is not a finite number" if _is_not_finite(ticket_id) else None


def _is_not_finite(ticket_id: TicketId) -> bool:
    return isinstance(ticket_id, float) and not math.isfinite(ticket_id)


def _text_problem(text: TicketId | BadValue, text_column: str) -> str | None:
    if isinstance(text, BadValue):
        return f"{text_column!r} is {text.problem}; write the column as UTF-8"
    if not isinstance(text, str):
        return f"missing text: {text_column!r} is null"
    if len(text) > MAX_RECORD_CHARS:
        return f"the text has {len(text):,} characters, at most {MAX_RECORD_CHARS:,} can be read; split it or cut it"
    return "empty text" if is_blank(text) else None


def _field(value: TicketId | BadValue) -> str:
    if value is None:
        return ""
    if isinstance(value, BadValue):
        return value.text
    return value if isinstance(value, str) else json.dumps(value)
