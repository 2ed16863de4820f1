"""What the input knows and the output does not: the text of a row, and its gold label."""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slm_runtime.errors import InputError
from slm_runtime.integrity import sha256_of
from slm_runtime.readers import TicketReader, open_tickets
from slm_runtime.records import Ticket
from slm_runtime.report.result_row import ResultRow
from slm_runtime.report.results import Results
from slm_runtime.report.run_facts import RunFacts
from slm_runtime.report.visible import plain

LONGEST_FIRST_LINE = 2**20


class OtherInputError(InputError):
    """The input does not have the rows of the output."""


@dataclass(frozen=True)
class TicketFacts:
    """The text of a row and its gold label; None where there is none."""

    text: str | None = None
    gold: str | None = None


class TicketLookup(Protocol):
    """Finds the facts of rows that are asked for in input order. Raises InputError."""

    def find(self, result: ResultRow) -> TicketFacts: ...


class NoTickets:
    """Knows nothing about any row."""

    def find(self, result: ResultRow) -> TicketFacts:  # noqa: ARG002
        return TicketFacts()


@dataclass(frozen=True)
class OwnColumns:
    """A CSV or TSV output repeats the input."""

    text_column: str
    gold_column: str | None

    def find(self, result: ResultRow) -> TicketFacts:
        gold = result.fields[self.gold_column] if self.gold_column else ""
        return TicketFacts(result.fields[self.text_column], gold.strip() or None)


@dataclass(frozen=True)
class InputRows:
    """The tickets of an input file, read alongside the output."""

    name: str
    tickets: Iterator[Ticket]
    gold_column: str | None

    def find(self, result: ResultRow) -> TicketFacts:
        for ticket in self.tickets:
            if ticket.row == result.row:
                self._check_id(ticket, result)
                gold = ticket.fields.get(self.gold_column, "") if self.gold_column else ""
                return TicketFacts(ticket.text, gold.strip() or None)
        raise OtherInputError(f"{self.name}: has no row {result.row}, the output has; give the input of this output")

    def _check_id(self, ticket: Ticket, result: ResultRow) -> None:
        if ticket.id is not None and result.id is not None and plain(ticket.id) != plain(result.id):
            raise OtherInputError(
                f"{self.name}: row {result.row} has the id {ticket.id!r:.80}, in the output {result.id!r:.80}; "
                "give the input of this output"
            )


@dataclass(frozen=True)
class InputChoice:
    """Where texts and gold labels are looked for: `input` is what --input says, the columns are flags as well."""

    input: Path | None
    text_column: str | None
    id_column: str | None
    gold: str | None


@dataclass(frozen=True)
class Source:
    """Which file is read for texts (None: the output itself, or nothing), and why nothing is, if so."""

    path: Path | None
    reason: str = ""


def find_source(choice: InputChoice, results: Results, run: RunFacts) -> Source:
    """The input, --input first, then what the record names, as long as it is still what the run read."""
    if choice.input is not None:
        return Source(choice.input)
    if _text_column(choice, run) in results.columns:
        return Source(None)
    if not run:
        return Source(
            None, "No record of the run lies beside the output, so that its input is not known; give --input."
        )
    name = run.text("flags", "input")
    if name in (None, "-") or not (path := Path(name or "")).is_file():
        where = "standard input" if name == "-" else f"{name or 'an unknown file'}, which is not there"
        return Source(None, f"The run read {where}; give --input.")
    digest = run.text("input", "sha256")
    try:
        same = digest is None or sha256_of(path) == digest
    except OSError as error:
        return Source(None, f"{name} cannot be read: {error.strerror}; give the file with --input.")
    return Source(path) if same else Source(None, f"{name} has changed since the run; give it as it was with --input.")


@contextmanager
def open_lookup(source: Source, choice: InputChoice, results: Results, run: RunFacts) -> Iterator[TicketLookup]:
    """Texts and gold labels of the output's rows.

    Raises:
        InputError: the input cannot be read, or there is no column that --gold or --text-column names.
    """
    text_column = _text_column(choice, run)
    if source.path is not None:
        with _open_input(source.path, choice, text_column, run) as reader:
            if reader.columns and choice.gold is not None:
                _check_gold(str(source.path), choice.gold, reader.columns)
            yield InputRows(str(source.path), iter(reader), choice.gold)
    elif text_column in results.columns:
        if choice.gold is not None:
            _check_gold(str(results.path), choice.gold, results.columns)
        yield OwnColumns(text_column, choice.gold)
    elif choice.gold is not None:
        raise InputError(f"--gold {choice.gold}: there is no input to read it from. {source.reason}")
    else:
        yield NoTickets()


def _text_column(choice: InputChoice, run: RunFacts) -> str:
    return choice.text_column or run.text("flags", "text_column") or "text"


def _open_input(path: Path, choice: InputChoice, text_column: str, run: RunFacts) -> TicketReader:
    read = run.text("flags", "input")
    # Another file of the same kind, say one with a gold column added, was most likely written the same way.
    alike = read is not None and Path(read).suffix.lower() == path.suffix.lower()
    return open_tickets(
        path,
        text_column=text_column,
        id_column=choice.id_column or run.text("flags", "id_column"),
        encoding=run.text("flags", "encoding") if alike else None,
        delimiter=run.text("flags", "delimiter") if alike else None,
        format=run.text("flags", "input_format") if alike else None,
        keep_columns=() if choice.gold is None else (choice.gold,),
    )


def _check_gold(name: str, gold: str, columns: tuple[str, ...]) -> None:
    if gold not in columns:
        raise InputError(f"{name}: no column {gold!r} for --gold; it has: {', '.join(map(repr, columns))[:500]}")


def no_gold_found(path: Path, gold: str) -> InputError:
    """The error for a gold column, read from `path`, that has no value in any row."""
    keys = ", ".join(map(repr, _first_keys(path)))[:500]
    seen = f"its first record has: {keys}" if keys else "the column is there, and empty"
    return InputError(f"{path}: no row has a value for --gold {gold!r}; {seen}")


def _first_keys(path: Path) -> list[str]:
    """The keys of the first JSON object of a file, [] where it is none."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            record = json.loads(stream.readline(LONGEST_FIRST_LINE))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return []
    return list(record) if isinstance(record, dict) else []
