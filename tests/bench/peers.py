"""The seed workload through PyTorch, llama.cpp, CTranslate2 and this runtime: one process, same weights and threads.

python tests/bench/peers.py --bundle models/NAME [--limit 60] [--rounds 2] [--json tests/bench/results/peers.json]

The paths take turns, in the opposite order in every other round. Times include tokenisation; loading and a warm-up of
two tickets are left out. All use the float32 weights and the first-token rule. A peer that is not installed is left
out, with a note: pip install 'slm-runtime[peers]'.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peer_weights import converted, write_ctranslate2, write_gguf

from slm_export.reference import Reference
from slm_export.reference_rules import Question
from slm_export.sources import resolve
from slm_export.stopwatch import Stopwatch
from slm_runtime.classifier import Classifier
from slm_runtime.errors import SlmError
from slm_runtime.machine import describe_machine, versions
from slm_runtime.options import RunOptions
from slm_runtime.task import Task
from slm_runtime.threads import usable_threads
from slm_runtime.workloads import SEED, SEED_LABELS, seed_tickets

WARM_UP_TICKETS = 2
REFERENCE = "PyTorch, item by item"
TASK = Task(SEED_LABELS, scoring="first-token")
Label = Callable[[Sequence[str]], list[str]]


@dataclass
class Measured:
    """One path's rounds: tickets per second, share of its threads' processor time, labels as the reference has them."""

    rates: list[float] = field(default_factory=list)
    cpu_shares: list[float] = field(default_factory=list)
    labels_equal: list[int] = field(default_factory=list)

    def to_json(self, num_tickets: int) -> dict[str, Any]:
        return {
            "items_per_s": self.rates,
            "median": statistics.median(self.rates),
            "cpu_share": self.cpu_shares,
            "labels_equal": min(self.labels_equal),
            "of": num_tickets,
        }


def load_paths(bundle: str, model: str | None, num_threads: int) -> dict[str, Label]:
    """Every path that can run here, by name; the reference first."""
    classifier = Classifier.load(bundle, threads=num_threads)
    folder = resolve(model or classifier.bundle.manifest.model.source).folder
    reference = Reference.load(folder, num_threads=num_threads)
    paths: dict[str, Label] = {REFERENCE: lambda texts: [scores.label for scores in reference.scores(texts, TASK)]}
    paths |= _peers(folder, reference.question(TASK), num_threads)
    paths["this runtime, no tree sharing, no dedupe"] = _runtime(
        classifier, RunOptions(strategy="bucketed", dedupe=False)
    )
    paths["this runtime, packed"] = _runtime(classifier, RunOptions())
    return paths


def _peers(folder: Path, question: Question, num_threads: int) -> dict[str, Label]:
    paths: dict[str, Label] = {}
    if _installed("llama_cpp", "llama.cpp"):
        from peer_llama import LlamaPeer

        path = converted(folder, "f32.gguf", write_gguf)
        paths["llama.cpp F32"] = LlamaPeer(path, question, num_threads=num_threads).labels
    if _installed("ctranslate2", "CTranslate2"):
        from peer_ctranslate2 import CTranslate2Peer

        path = converted(folder, "ctranslate2", write_ctranslate2)
        paths["CTranslate2 float32"] = CTranslate2Peer(path, folder, question, num_threads=num_threads).labels
    return paths


def _installed(module: str, name: str) -> bool:
    if find_spec(module) is None:
        _say(f"{name} is left out: {module} is not installed; pip install 'slm-runtime[peers]'")
        return False
    return True


def _runtime(classifier: Classifier, options: RunOptions) -> Label:
    def labels(texts: Sequence[str]) -> list[str]:
        return [prediction.label or "" for prediction in classifier.classify(texts, TASK, options)]

    return labels


def measure(paths: dict[str, Label], texts: Sequence[str], rounds: int, num_threads: int) -> dict[str, Measured]:
    """Every path in every round; the expected labels are those of the reference's first round."""
    expected: list[str] = []
    for run in paths.values():
        run(texts[:WARM_UP_TICKETS])
    measured = {name: Measured() for name in paths}
    for number in range(rounds):
        for name in paths if number % 2 == 0 else reversed(paths):
            watch = Stopwatch()
            labels = paths[name](texts)
            timing = watch.read()
            expected = expected or labels
            found = measured[name]
            found.rates.append(len(texts) / timing.wall_s)
            found.cpu_shares.append(timing.cpu_share(num_threads))
            found.labels_equal.append(sum(a == b for a, b in zip(labels, expected, strict=True)))
            _say(f"round {number + 1}, {name}: {found.rates[-1]:.2f} items/s, {found.labels_equal[-1]} labels equal")
    return measured


def _versions() -> dict[str, str]:
    found = versions()
    for name in ("torch", "transformers", "llama-cpp-python", "ctranslate2"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _say(message: str) -> None:
    sys.stderr.write(f"peers: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write JSON; returns the exit code: 0, or that of the user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument(
        "--reference", help="hub id, folder, .gguf file or catalogue name; default: the bundle's source"
    )
    parser.add_argument("--limit", type=int, default=60, help="first so many tickets of the seed workload")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, help="of every path; default: all usable CPUs")
    parser.add_argument("--json", type=Path, help="default: standard output")
    arguments = parser.parse_args(argv)
    if min(arguments.limit, arguments.rounds, arguments.threads or 1) < 1:
        parser.error("--limit, --rounds and --threads need at least 1")
    num_threads = usable_threads(arguments.threads)
    try:
        paths = load_paths(arguments.bundle, arguments.reference, num_threads)
        texts = seed_tickets()[: arguments.limit]
        measured = measure(paths, texts, arguments.rounds, num_threads)
    except SlmError as error:
        _say(str(error))
        return error.exit_code
    report = {
        "machine": describe_machine(num_threads),
        "versions": _versions(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith("CT2_")},
        "workload": {"name": SEED, "tickets": len(texts)},
        "rounds": arguments.rounds,
        "paths": {name: found.to_json(len(texts)) for name, found in measured.items()},
    }
    text = json.dumps(report, indent=1) + "\n"
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
