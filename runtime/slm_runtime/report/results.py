"""The output of `slm-run classify`, read again: one `ResultRow` per record, in order, nothing half understood."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slm_runtime.errors import InputError
from slm_runtime.extra import require
from slm_runtime.lines import PhysicalLines
from slm_runtime.report.result_csv import read_csv_results
from slm_runtime.report.result_records import jsonl_rows, parquet_rows
from slm_runtime.report.result_row import PlacedRow, ResultRow, damaged

ENDINGS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Results:
    """An open output, whose rows can be read once; `columns` are the input's that a CSV or TSV output repeats."""

    path: Path
    rows: Iterator[ResultRow]
    columns: tuple[str, ...] = ()

    @property
    def has_details(self) -> bool:
        """True where records hold scores, token counts and flags, which CSV and TSV leave out."""
        return self.path.suffix.lower() not in (".csv", ".tsv")


@contextmanager
def open_results(path: Path, *, id_column: str, spreadsheet_safe: bool) -> Iterator[Results]:
    """The records of `path`, checked while they are read: rows are in input order, every value is of its kind.

    `id_column` is the CSV column that holds the id; `spreadsheet_safe` says that apostrophes were added to cells.

    Raises:
        InputError: the file is missing, damaged (names the line), or nothing that `slm-run classify` writes.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(
            f"{path}: the ending {ending!r} says no format; expected an output of slm-run classify "
            f"({', '.join(ENDINGS)})"
        )
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; expected an output of slm-run classify") from error
    with stream:
        if ending == ".parquet":
            require("pyarrow", extra="parquet", purpose=f"{path}: reading Parquet")
            yield Results(path, _in_order(path, parquet_rows(path)))
            return
        lines = PhysicalLines(stream, name=str(path), encoding="utf-8")
        if ending in (".csv", ".tsv"):
            delimiter = "\t" if ending == ".tsv" else ","
            table = read_csv_results(lines, delimiter=delimiter, id_column=id_column, spreadsheet_safe=spreadsheet_safe)
            yield Results(path, _in_order(path, table.rows), table.columns)
        else:
            yield Results(path, _in_order(path, jsonl_rows(lines)))


def _in_order(path: Path, placed_rows: Iterator[PlacedRow]) -> Iterator[ResultRow]:
    last = -1
    for placed in placed_rows:
        row = placed.result.row
        if row <= last:
            raise damaged(path, placed.place, f"row {row} after row {last}, expected rows in input order")
        last = row
        yield placed.result
