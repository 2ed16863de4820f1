"""How often labels are right: three prompts with and without calibration, each judged on texts it was not fitted on.

python tests/bench/quality.py --bundle models/NAME [--banking77 FILE] [--limit N] [--json FILE]

Workloads: banking77 with the ten labels of banking77-ten.toml and with its 77, and the seed's three labels, whose right
label is the base sentence that a ticket begins with. Prompts: the task's own, the same with the labels described
(descriptions.toml), the same with one solved ticket per label that has two to fit on. Calibrations: none, the
content-free prior, fitted. The halves are those of `slm-run tune`; examples come from the half to fit on and are not
fitted on again.
"""

import argparse
import csv
import dataclasses
import json
import random
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from banking77_groups import LABEL_OF

from slm_runtime.classifier import Classifier
from slm_runtime.errors import SlmError
from slm_runtime.machine import describe_machine, versions
from slm_runtime.task import Example, Task, read_task
from slm_runtime.tune import score_rows, tune
from slm_runtime.tune_gold import GoldRow, is_for_fitting
from slm_runtime.workloads import SEED_LABELS, seed_tickets

HERE = Path(__file__).parent
SAMPLE = HERE.parent / "data" / "banking77" / "sample.csv"
SEED = 0
NAMES = ("ten", "all77", "seed")


@dataclass(frozen=True)
class GoldWorkload:
    """Texts with right labels, and the plain task."""

    name: str
    task: Task
    rows: tuple[GoldRow, ...]


def load(name: str, banking77: Path, limit: int | None) -> GoldWorkload:
    """The first `limit` rows of a workload; those of banking77 are shuffled before, the file is sorted by intent."""
    if name == "seed":
        task = Task(SEED_LABELS)
        # The seed's base sentences take turns, in the order of its labels.
        pairs = [(text, SEED_LABELS[row % len(SEED_LABELS)]) for row, text in enumerate(seed_tickets())]
    else:
        task = read_task(HERE / f"banking77-{name}.toml")
        with banking77.open(encoding="utf-8", newline="") as stream:
            found = [(row["text"], row["category"]) for row in csv.DictReader(stream)]
        pairs = [(text, LABEL_OF[intent] if name == "ten" else intent) for text, intent in found]
        random.Random(SEED).shuffle(pairs)
    rows = [GoldRow(text, task.labels.index(label)) for text, label in pairs[:limit]]
    return GoldWorkload(name, task, tuple(rows))


def prompts(workload: GoldWorkload) -> Iterator[tuple[str, Task, list[GoldRow]]]:
    """Name, task and rows of every prompt; rows that became examples are left out."""
    task, rows = workload.task, list(workload.rows)
    yield "plain", task, rows
    described = tomllib.loads((HERE / "descriptions.toml").read_text(encoding="utf-8"))[workload.name]
    yield "described", dataclasses.replace(task, descriptions=tuple(described[label] for label in task.labels)), rows
    examples = _examples(task, [row for row in rows if is_for_fitting(row.text, SEED)])
    shown = {example.text for example in examples}
    yield "few-shot", dataclasses.replace(task, examples=examples), [row for row in rows if row.text not in shown]


def _examples(task: Task, rows: Sequence[GoldRow]) -> tuple[Example, ...]:
    """The first text of every label that has another one to fit on."""
    texts: dict[int, dict[str, None]] = {}
    for row in rows:
        texts.setdefault(row.gold, {})[row.text] = None
    return tuple(
        Example(next(iter(found)), task.labels[gold]) for gold, found in sorted(texts.items()) if len(found) > 1
    )


def measure(classifier: Classifier, workload: GoldWorkload) -> dict[str, Any]:
    """Quality on the half held back, by prompt and calibration, ready for JSON."""
    measured: dict[str, Any] = {}
    num_held_back = 0
    for name, task, rows in prompts(workload):
        started = time.perf_counter()
        scored = score_rows(classifier, task, rows, seed=SEED)
        seconds = time.perf_counter() - started
        tuning = tune(classifier, task, scored)
        num_held_back = tuning.held_back["before"].num_rows
        measured[name] = {
            "rows_per_s": len(rows) / seconds,
            "fit_rows": tuning.fit["before"].num_rows,
            "examples": len(task.examples),
            "failed": scored.num_failed,
            **tuning.to_json(task.labels),
        }
        before, fitted = (tuning.held_back[variant].accuracy for variant in ("before", "fitted"))
        _say(
            f"{workload.name}, {name}: {len(rows)} rows in {seconds:.0f} s, accuracy {before:.3f}, fitted {fitted:.3f}"
        )
    return {
        "num_labels": len(workload.task.labels),
        "rows": len(workload.rows),
        "held_back": num_held_back,
        "prompts": measured,
    }


def _say(message: str) -> None:
    sys.stderr.write(f"quality: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write JSON; returns the exit code: 0, or that of the user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--banking77", type=Path, default=SAMPLE, help="CSV with the columns text and category")
    parser.add_argument("--workloads", default=",".join(NAMES), help="comma-separated, some of the default")
    parser.add_argument("--limit", type=int, help="rows of each workload")
    parser.add_argument("--limit-all77", type=int, help="rows with 77 labels, which are slow; default: --limit")
    parser.add_argument("--threads", type=int, help="default: all usable CPUs")
    parser.add_argument("--json", type=Path, help="default: standard output")
    arguments = parser.parse_args(argv)
    names = arguments.workloads.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"--workloads: unknown {sorted(unknown)}, expected some of {', '.join(NAMES)}")
    limits = dict.fromkeys(names, arguments.limit) | {"all77": arguments.limit_all77 or arguments.limit}
    try:
        classifier = Classifier.load(arguments.bundle, threads=arguments.threads)
        found = {name: measure(classifier, load(name, arguments.banking77, limits[name])) for name in names}
    except SlmError as error:
        _say(str(error))
        return error.exit_code
    report = {
        "machine": describe_machine(classifier.num_threads),
        "versions": versions(),
        "bundle": {"id": classifier.bundle.manifest.model.id},
        "banking77": arguments.banking77.name,
        "limits": {name: limits[name] for name in names},
        "workloads": found,
    }
    text = json.dumps(report, indent=1) + "\n"
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
