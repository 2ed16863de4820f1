"""The built-in calibration prompts: this project's own texts, asked with its own tasks."""

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from slm_runtime.task import Task, task_of_table

# Prompts of every task on which the weights are rounded; the margin bounds are measured on the texts after them.
PROMPTS_PER_TASK = 8


@dataclass(frozen=True)
class Sample:
    """Texts that are asked with one task."""

    task: Task
    texts: tuple[str, ...]


def calibration_samples(texts_per_task: int, *, skip: int = 0) -> list[Sample]:
    """So many texts for every built-in task, spread over the kinds of text; `skip` texts of the list are left out.

    Neighbouring tasks get different texts until the list is used up.
    """
    tasks, texts = list(_tasks()), list(_texts())[skip:]
    return [
        Sample(task, tuple(texts[(number * texts_per_task + i) % len(texts)] for i in range(texts_per_task)))
        for number, task in enumerate(tasks)
    ]


def num_tasks() -> int:
    """How many built-in tasks there are."""
    return len(list(_tasks()))


def _tasks() -> Iterator[Task]:
    content = files(__package__).joinpath("tasks.toml").read_text(encoding="utf-8")
    for table in tomllib.loads(content)["task"]:
        yield task_of_table({key: value for key, value in table.items() if key != "name"})


def _texts() -> Sequence[str]:
    """All texts, the groups of the file dealt out evenly: any run of the list holds every kind of text."""
    lines = files(__package__).joinpath("texts.jsonl").read_text(encoding="utf-8").splitlines()
    groups: dict[str, list[Any]] = {}
    for line in lines:
        record = json.loads(line)
        groups.setdefault(record["group"], []).append(record["text"])
    placed = [((i + 0.5) / len(texts), text) for texts in groups.values() for i, text in enumerate(texts)]
    return [text for _, text in sorted(placed)]
