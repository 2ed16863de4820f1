"""Rows with their right labels: read from a file, and split into a half to fit on and a half to judge by."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from slm_runtime.errors import InputError
from slm_runtime.integrity import sha256_of
from slm_runtime.readers import TicketReader, open_tickets
from slm_runtime.records import Ticket

SHOWN_LABELS = 3


@dataclass(frozen=True)
class GoldRow:
    """A usable text and the index of its right label."""

    text: str
    gold: int


@dataclass(frozen=True)
class GoldData:
    """The usable rows of a file. `num_rows` were read; the others have no gold label or no usable text."""

    name: str
    sha256: str
    rows: tuple[GoldRow, ...]
    num_rows: int
    num_without_gold: int


def read_gold(
    path: Path, labels: Sequence[str], *, text_column: str, gold_column: str, limit: int | None = None
) -> GoldData:
    """The rows of a CSV, TSV, JSONL (.gz) or Parquet file; at most `limit` of them.

    A row whose gold column is empty is left out, as is one whose text cannot be used.

    Raises:
        InputError: the file cannot be read, it has no such column, or a gold label is not one of `labels`.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected a CSV, TSV, JSONL or Parquet file with gold labels")
    with open_tickets(path, text_column=text_column, keep_columns=(gold_column,)) as reader:
        _check_column(path, reader, gold_column)
        tickets = [(ticket, ticket.fields.get(gold_column, "").strip()) for ticket in islice(reader, limit)]
    labelled = [(ticket, gold) for ticket, gold in tickets if gold]
    if tickets and not labelled:
        raise InputError(f"{path}: no row has a {gold_column!r}; give another --gold-column")
    _check_labels(path, (gold for _, gold in labelled), labels)
    rows = _usable(labelled, labels)
    return GoldData(path.name, sha256_of(path), tuple(rows), len(tickets), len(tickets) - len(labelled))


def _check_column(path: Path, reader: TicketReader, gold_column: str) -> None:
    if reader.columns and gold_column not in reader.columns:
        seen = ", ".join(map(repr, reader.columns))[:500]
        raise InputError(f"{path}: no column {gold_column!r}; the header has: {seen}. Give another --gold-column")


def _check_labels(path: Path, golds: Iterable[str], labels: Sequence[str]) -> None:
    unknown = Counter(gold for gold in golds if gold not in labels)
    if unknown:
        shown = ", ".join(repr(label[:80]) for label in list(unknown)[:SHOWN_LABELS])
        more = f" and {len(unknown) - SHOWN_LABELS} more" if len(unknown) > SHOWN_LABELS else ""
        raise InputError(
            f"{path}: {unknown.total()} rows have a gold label that the task does not have ({shown}{more}); "
            "correct them, or give the task these labels"
        )


def _usable(labelled: Iterable[tuple[Ticket, str]], labels: Sequence[str]) -> list[GoldRow]:
    index = {label: i for i, label in enumerate(labels)}
    return [GoldRow(ticket.text, index[gold]) for ticket, gold in labelled if ticket.text is not None]


def is_for_fitting(text: str, seed: int) -> bool:
    """The half that a text belongs to, whatever the other rows are; white space makes no difference."""
    return not hashlib.sha256(f"{seed} {' '.join(text.split())}".encode("utf-8", "replace")).digest()[0] & 1
