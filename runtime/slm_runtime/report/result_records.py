"""Outputs that hold whole records, JSONL and Parquet: every value is checked before it is believed."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slm_runtime.errors import InputError
from slm_runtime.lines import PhysicalLines
from slm_runtime.report.result_row import RESULT_COLUMNS, PlacedRow, ResultRow, damaged

NEEDED_KEYS = ("row", *RESULT_COLUMNS)
BATCH_ROWS = 1024
LARGEST_COUNT = 2**53


def jsonl_rows(lines: PhysicalLines) -> Iterator[PlacedRow]:
    """The records of a JSONL output. Raises InputError, which names the line."""
    for line in lines:
        if line.strip():
            place = f"line {lines.number}"
            if lines.bad_byte:
                raise InputError(f"{lines.name}: {lines.bad_byte}")
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise damaged(lines.name, place, f"not valid JSON: {error.msg} at character {error.colno}") from error
            except (ValueError, RecursionError) as error:
                raise damaged(lines.name, place, f"not usable JSON: {error}") from error
            yield PlacedRow(place, _checked(lines.name, place, record))
        lines.start_record()


def parquet_rows(path: Path) -> Iterator[PlacedRow]:
    """The records of a Parquet output. Raises InputError, which names the row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                for record in batch.to_pylist():
                    yield PlacedRow(f"row {number}", _checked(path, f"row {number}", record))
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, f"beyond row {number}", error) from error


def _checked(name: Path | str, place: str, record: Any) -> ResultRow:
    try:
        return _result(record)
    except (TypeError, ValueError, OverflowError) as problem:
        raise damaged(name, place, problem) from problem


def _result(record: Any) -> ResultRow:
    if not isinstance(record, dict):
        raise TypeError("not a JSON object")
    if missing := [key for key in NEEDED_KEYS if key not in record]:
        raise ValueError(f"no key {missing[0]!r}")
    scores = record.get("scores") or {}
    if isinstance(scores, list):  # a map of Arrow
        scores = dict(scores)
    if not isinstance(scores, dict):
        raise TypeError(f"'scores' is {scores!r:.50}, expected an object")
    row = _count(record, "row")
    if row is None:
        raise ValueError("'row' is null")
    return ResultRow(
        row=row,
        id=record.get("id"),
        label=_text(record, "label"),
        score=_number(record, "score"),
        margin=_number(record, "margin"),
        scores={label: _number(scores, label) or 0.0 for label in scores},
        num_tokens=_count(record, "num_tokens"),
        truncated=record.get("truncated") is True,
        rechecked=record.get("rechecked") is True,
        error=_text(record, "error"),
    )


def _text(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{key!r} is {value!r:.50}, expected a string or null")


def _number(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{key!r} is {value!r:.50}, expected a finite number or null")
    return float(value)


def _count(record: Mapping[str, Any], key: str) -> int | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_COUNT:
        raise TypeError(f"{key!r} is {value!r:.50}, expected a whole number from 0 on")
    return value
