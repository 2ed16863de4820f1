"""The task that the flags of a command ask for."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import click

from slm_runtime.label_file import parse_labels, read_labels
from slm_runtime.task import Scoring, Task, read_task


@dataclass(frozen=True)
class TaskFlags:
    """--labels, --labels-file, --task, --scoring, --threshold and --abstain, as click delivers them."""

    labels: str | None
    labels_file: Path | None
    task: Path | None
    scoring: Scoring | None
    threshold: float | None
    abstain: str | None

    def read_task(self) -> Task:
        """The task of --task, or of the labels with the default prompt; flags win over the file."""
        sources = [s for s in (self.labels, self.labels_file, self.task) if s is not None]
        if len(sources) != 1:
            raise click.UsageError("give exactly one of --labels, --labels-file and --task")
        if self.task:
            task = read_task(self.task)
        else:
            labels = parse_labels(self.labels) if self.labels is not None else read_labels(sources[0])
            task = Task(labels=tuple(labels))
        threshold = task.threshold if self.threshold is None else self.threshold
        if self.abstain is not None and threshold is None:
            raise click.UsageError("--abstain names the label below a threshold: give --threshold, or one in the task")
        abstain = task.abstain if self.abstain is None else self.abstain.strip()
        return dataclasses.replace(task, scoring=self.scoring or task.scoring, threshold=threshold, abstain=abstain)
