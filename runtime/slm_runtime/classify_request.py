"""What `slm-run classify` was asked to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from slm_runtime.options import RunOptions, Truncate
from slm_runtime.planning import Strategy
from slm_runtime.precision import Precision
from slm_runtime.readers import TicketReader, open_tickets
from slm_runtime.task import Scoring, Task
from slm_runtime.task_flags import TaskFlags


@dataclass(frozen=True)
class ClassifyRequest:
    """The flags of `slm-run classify`, as click delivers them."""

    bundle: str
    input: str
    output: str
    labels: str | None
    labels_file: Path | None
    task: Path | None
    text_column: str
    id_column: str | None
    input_format: str | None
    encoding: str | None
    delimiter: str | None
    scoring: Scoring | None
    provider: str
    precision: Precision
    threads: int | None
    batch_tokens: int
    strategy: Strategy
    no_prefix_cache: bool
    all_scores: bool
    no_dedupe: bool
    max_tokens: int | None
    truncate: Truncate
    threshold: float | None
    abstain: str | None
    limit: int | None
    strict: bool
    spreadsheet_safe: bool
    resume: bool
    overwrite: bool
    dry_run: bool
    explain: int | None
    quiet: bool
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None
    concurrency: int | None = None
    output_format: str | None = None

    def check_engine(self) -> None:
        """Refuse flags that say nothing to the chosen engine."""
        if self.engine == "local":
            alien = {
                "--ray-address": self.ray_address is not None,
                "--concurrency": self.concurrency is not None,
                "--output-format": self.output_format is not None,
            }
        else:
            alien = {
                "--explain": self.explain is not None,
                "--dry-run": self.dry_run,
                "--strict": self.strict,
                "--limit": self.limit is not None,
                "-i -": self.input == "-",
                "-o -": self.output == "-",
            }
        if refused := [flag for flag, given in alien.items() if given]:
            other = "ray" if self.engine == "local" else "local"
            raise click.UsageError(f"{', '.join(refused)}: only with --engine {other}")

    def read_task(self) -> Task:
        """The task of --task, or of the labels with the default prompt; flags win over the file."""
        flags = TaskFlags(self.labels, self.labels_file, self.task, self.scoring, self.threshold, self.abstain)
        return flags.read_task()

    def options(self) -> RunOptions:
        return RunOptions(
            strategy=self.strategy,
            prefix_cache=not self.no_prefix_cache,
            dedupe=not self.no_dedupe,
            all_scores=self.all_scores,
            batch_tokens=self.batch_tokens,
            max_tokens=self.max_tokens,
            truncate=self.truncate,
        )

    def open_input(self) -> TicketReader:
        return open_tickets(
            self.input,
            text_column=self.text_column,
            id_column=self.id_column,
            encoding=self.encoding,
            delimiter=self.delimiter,
            format=self.input_format,
            all_columns=Path(self.output).suffix.lower() in (".csv", ".tsv"),
        )

    @property
    def worker_precision(self) -> Precision:
        """`auto` looks at the first rows of a run, which a worker does not see: with --engine ray it means fp32."""
        return "fp32" if self.precision == "auto" else self.precision

    @property
    def input_is_file(self) -> bool:
        return self.input != "-" and Path(self.input).is_file()

    def reading(self) -> dict[str, str | int | None]:
        """How the input's bytes become rows."""
        return {
            "text column": self.text_column,
            "id column": self.id_column,
            "input format": self.input_format,
            "encoding": self.encoding,
            "delimiter": self.delimiter,
            "limit": self.limit,
        }
