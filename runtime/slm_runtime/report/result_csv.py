"""Outputs in CSV and TSV: the input's columns, then label, score, margin and error under names that were free."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass

from slm_runtime.errors import InputError
from slm_runtime.lines import MAX_RECORD_CHARS, PhysicalLines
from slm_runtime.report.result_row import RESULT_COLUMNS, PlacedRow, ResultRow, damaged
from slm_runtime.writers import harmless

ROW_COLUMNS = ("id", "row")  # what stands there instead of the columns of an input that has none


@dataclass(frozen=True)
class CsvResults:
    """The records of an open CSV or TSV output; `columns` are the input's, `rows` can be read once."""

    columns: tuple[str, ...]
    rows: Iterator[PlacedRow]


def read_csv_results(lines: PhysicalLines, *, delimiter: str, id_column: str, spreadsheet_safe: bool) -> CsvResults:
    """The header, read at once, and the records, read as they are asked for.

    `spreadsheet_safe` says that apostrophes were put in front of cells; they are taken off again.

    Raises: InputError, also while iterating: the last columns are not an output's, or a record is damaged.
    """
    records = _records(lines, delimiter)
    header = next(records, ("", []))[1]
    columns, found = tuple(header[: -len(RESULT_COLUMNS)]), header[-len(RESULT_COLUMNS) :]
    if tuple(_without_prefix(name) for name in found) != RESULT_COLUMNS:
        raise InputError(
            f"{lines.name}: the last columns are {', '.join(map(repr, found))[:200] or 'missing'}, expected "
            f"{', '.join(RESULT_COLUMNS)}; give an output of slm-run classify"
        )
    layout = _Layout(columns, id_column, spreadsheet_safe)
    return CsvResults(() if columns == ROW_COLUMNS else columns, _rows(lines.name, records, layout))


@dataclass(frozen=True)
class _Layout:
    columns: tuple[str, ...]
    id_column: str
    spreadsheet_safe: bool

    def result(self, number: int, record: list[str]) -> ResultRow:
        """The record with this number, from 0. Raises ValueError."""
        size = len(self.columns) + len(RESULT_COLUMNS)
        if len(record) != size:
            raise ValueError(f"{len(record)} fields, expected {size}")
        cells = [_unquoted(cell) for cell in record] if self.spreadsheet_safe else record
        fields = dict(zip(self.columns, cells, strict=False))
        label, score, margin, error = cells[len(self.columns) :]
        return ResultRow(
            row=int(fields["row"]) if self.columns == ROW_COLUMNS else number,
            id=fields.get(self.id_column),
            label=label or None,
            score=_number(score),
            margin=_number(margin),
            error=error or None,
            fields=fields,
        )


def _without_prefix(name: str) -> str:
    while name.startswith("predicted_"):
        name = name.removeprefix("predicted_")
    return name


def _records(lines: PhysicalLines, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_CHARS))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise damaged(lines.name, f"line {lines.record_number}", error) from error
        if record is None:
            return
        if lines.bad_byte:
            raise InputError(f"{lines.name}: {lines.bad_byte}")
        if record:
            yield f"line {lines.record_number}", record
        lines.start_record()


def _rows(name: str, records: Iterator[tuple[str, list[str]]], layout: _Layout) -> Iterator[PlacedRow]:
    for number, (place, record) in enumerate(records):
        try:
            yield PlacedRow(place, layout.result(number, record))
        except ValueError as problem:
            raise damaged(name, place, problem) from problem


def _number(cell: str) -> float | None:
    number = float(cell) if cell else None
    if number is not None and not math.isfinite(number):
        raise ValueError(f"{cell!r} is not a finite number")
    return number


def _unquoted(cell: str) -> str:
    """The cell without the apostrophe that keeps a spreadsheet from taking it for a formula."""
    return cell[1:] if cell.startswith("'") and harmless(cell[1:]) == cell else cell
