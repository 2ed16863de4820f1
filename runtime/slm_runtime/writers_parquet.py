"""Predictions to Parquet: the columns are the keys of a JSONL record."""

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from slm_runtime.errors import OutputError
from slm_runtime.records import Prediction, Ticket, TicketId
from slm_runtime.ticket_text import replace_lone_surrogates

GROUP_ROWS = 4096
GROUP_SCORES = 2**18  # bounds the memory of a group where there are many labels

SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "row": pa.int64(),
        "label": pa.string(),
        "score": pa.float64(),
        "margin": pa.float64(),
        "scores": pa.map_(pa.string(), pa.float64()),
        "label_mass": pa.float64(),
        "num_tokens": pa.int32(),
        "truncated": pa.bool_(),
        "rechecked": pa.bool_(),
        "error": pa.string(),
    }
)
_REPEATING = ["label", "scores.key_value.key", "error"]


class ParquetPredictionWriter:
    """Writes row groups of GROUP_ROWS rows, fewer with many scores. Raises OutputError.

    The id is text: a string as it is, a number or boolean as in JSON.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._name = name
        self._waiting: list[Prediction] = []
        self._num_scores = 0
        with self._reported():
            self._file = pq.ParquetWriter(stream, SCHEMA, use_dictionary=_REPEATING, write_page_checksum=True)

    def write(self, ticket: Ticket, prediction: Prediction) -> None:
        """Append one row; NaN and infinity are refused with ValueError, they are our bug."""
        assert ticket.row == prediction.row, f"row {prediction.row} answers ticket {ticket.row}"
        numbers = [prediction.score, prediction.margin, prediction.label_mass, *prediction.scores.values()]
        if not all(number is None or math.isfinite(number) for number in numbers):
            raise ValueError(f"row {prediction.row} has a score that is not a finite number")
        self._waiting.append(prediction)
        self._num_scores += len(prediction.scores)
        if len(self._waiting) >= GROUP_ROWS or self._num_scores >= GROUP_SCORES:
            self._write_group()

    def append(self, rows: pa.Table) -> None:
        """Append rows that another writer of this class has written."""
        with self._reported():
            self._file.write_table(rows)

    def flush(self) -> None:
        """Keep what is waiting: a row group is written when it is full, or at the end."""

    def close(self) -> None:
        """Write the rows that wait, and the footer without which the file cannot be read."""
        if self._waiting:
            self._write_group()
        with self._reported():
            self._file.close()

    def abandon(self) -> None:
        """Let go of the stream while it is open; left to the garbage collector, Arrow would write to a closed one."""
        with suppress(OSError, pa.ArrowException):
            self._file.close()

    def _write_group(self) -> None:
        group = pa.RecordBatch.from_pylist([_record(prediction) for prediction in self._waiting], schema=SCHEMA)
        self._waiting, self._num_scores = [], 0
        with self._reported():
            self._file.write_batch(group)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"{self._name}: cannot be written: {reason}") from error


@contextmanager
def parquet_writing(destination: AbstractContextManager[IO[bytes]], name: str) -> Iterator[ParquetPredictionWriter]:
    """The writer of a new, seekable file, which is complete when the context ends well."""
    with destination as stream:
        writer = ParquetPredictionWriter(stream, name)
        try:
            yield writer
            writer.close()
        except BaseException:
            writer.abandon()
            raise


def _record(prediction: Prediction) -> dict[str, object]:
    record = prediction.to_record()
    record["scores"] = [(_text(label), score) for label, score in prediction.scores.items()]
    return record | {key: _text(record[key]) for key in ("id", "label", "error")}


def _text(value: TicketId) -> str | None:
    if value is None:
        return None
    return replace_lone_surrogates(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)
