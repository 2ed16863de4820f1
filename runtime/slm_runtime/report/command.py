"""`slm-run report`: from the flags to one page that is whole or not there."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from tqdm import tqdm

from slm_runtime.errors import OutputError
from slm_runtime.report.canvas import require_matplotlib
from slm_runtime.report.contents import Material, build_page
from slm_runtime.report.page import page_to_html
from slm_runtime.report.results import Results, open_results
from slm_runtime.report.run_facts import RunFacts
from slm_runtime.report.tally import Tally
from slm_runtime.report.tickets import (
    InputChoice,
    OtherInputError,
    Source,
    find_source,
    no_gold_found,
    open_lookup,
)
from slm_runtime.report.visible import visible
from slm_runtime.run_record import record_path
from slm_runtime.writers import write_file


@dataclass(frozen=True)
class ReportRequest:
    """The flags of `slm-run report`, as click delivers them."""

    output: Path
    page: Path
    input: Path | None
    text_column: str | None
    id_column: str | None
    gold: str | None
    review: int
    overwrite: bool

    @property
    def choice(self) -> InputChoice:
        return InputChoice(self.input, self.text_column, self.id_column, self.gold)


@dataclass(frozen=True)
class Counted:
    """All rows of an output, counted; `reason` says why there are no texts, "" where there are."""

    tally: Tally
    has_details: bool
    reason: str


def write_report(request: ReportRequest) -> int:
    """Read the output, its record and its input, and write the page; the exit code is 0."""
    _check_page(request)
    require_matplotlib()
    run = RunFacts.of_output(request.output)
    counted = _count(request, run)
    notes = [f"Ticket texts are left out. {counted.reason}"] if counted.reason else []
    for note in notes:
        click.echo(f"slm-run: {visible(note)}", err=True)
    material = Material(
        output=request.output,
        tally=counted.tally,
        run=run,
        has_details=counted.has_details,
        review=request.review,
        gold=request.gold,
        notes=notes,
    )
    _write_page(request.page, page_to_html(build_page(material)).encode("utf-8", "replace"))
    name = "standard output" if str(request.page) == "-" else request.page
    click.echo(f"slm-run: {name}: a report on {counted.tally.num_rows:,} rows", err=True)
    return 0


def _count(request: ReportRequest, run: RunFacts) -> Counted:
    with _open(request, run) as results:
        source = find_source(request.choice, results, run)
        try:
            return _count_with(source, request, results, run)
        except OtherInputError as error:
            if request.input is not None or request.gold is not None:
                raise
            reason = str(error)
    with _open(request, run) as results:  # from its start again, without texts
        return _count_with(Source(None, f"{reason}, with --input."), request, results, run)


@contextmanager
def _open(request: ReportRequest, run: RunFacts) -> Iterator[Results]:
    id_column = request.id_column or run.text("flags", "id_column") or "id"
    spreadsheet_safe = run.value("flags", "spreadsheet_safe") is True
    with open_results(request.output, id_column=id_column, spreadsheet_safe=spreadsheet_safe) as results:
        yield results


def _count_with(source: Source, request: ReportRequest, results: Results, run: RunFacts) -> Counted:
    tally = Tally(labels=run.labels, review=request.review, with_gold=request.gold is not None)
    with (
        open_lookup(source, request.choice, results, run) as lookup,
        tqdm(unit="row", disable=not sys.stderr.isatty()) as bar,
    ):
        for result in results.rows:
            tally.add(result, lookup.find(result))
            bar.update()
    if request.gold is not None and tally.gold is not None and tally.num_rows and not tally.gold.num_with_gold:
        raise no_gold_found(source.path or results.path, request.gold)
    return Counted(tally, results.has_details, source.reason)


def _check_page(request: ReportRequest) -> None:
    """Refuse a name that cannot be written, before any work is done. Raises OutputError."""
    path = request.page
    if str(path) == "-":
        return
    for source in (request.output, record_path(request.output), request.input):
        if source is not None and path.exists() and source.exists() and path.samefile(source):
            raise OutputError(f"{path}: is what the report is made from; give the page another name")
    if path.is_dir():
        raise OutputError(f"{path}: is a folder, expected a file name")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: cannot be written: there is no folder {path.parent}; make it first")
    if path.is_file() and not request.overwrite:
        raise OutputError(f"{path}: exists already; give another name, or --overwrite to replace it")


def _write_page(path: Path, page: bytes) -> None:
    """The page under its name, whole or not at all; a device or pipe gets it directly. Raises OutputError."""
    try:
        if str(path) == "-":
            sys.stdout.buffer.write(page)
            sys.stdout.buffer.flush()
        elif path.exists() and not path.is_file():
            with path.open("wb") as stream:
                stream.write(page)
        else:
            write_file(path, page)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
