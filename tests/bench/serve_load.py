"""`slm-run serve` under load: items/s and waiting times against the number of clients, and a soak.

python tests/bench/serve_load.py --bundle models/NAME [--seconds 20] [--clients 1,4,16,64] [--reference-limit 20]
    [--workload FILE --task FILE] [--soak SECONDS] [--json tests/bench/results/serve.json]

The same service runs once as it is and once with --max-batch 1, on a free port of this machine; the clients, one text
per request, share its processors. Every answer is compared with `Classifier.classify`. The item-by-item PyTorch loop
over the first tickets of the workload stands beside it. --soak alone measures memory: short and long texts, hardly one
twice, among refused, broken-off and large requests. Exit code 1: an answer was wrong, or memory grew by more than 5 %.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from http_clients import load
from serve_soak import soak

from slm_runtime.classifier import Classifier
from slm_runtime.machine import describe_machine, versions
from slm_runtime.readers import open_tickets
from slm_runtime.records import Prediction
from slm_runtime.task import Task, read_task
from slm_runtime.threads import usable_threads
from slm_runtime.workloads import SEED, SEED_LABELS, seed_tickets

RUN = [sys.executable, "-c", "import sys; from slm_runtime.cli import main; sys.exit(main())"]
MODES = {"batched": (), "one by one": ("--max-batch", "1")}
SCORE_TOLERANCE = 1e-5
MAX_GROWTH = 0.05
WARM_UP_S = 3.0
SOAK_CLIENTS = 16


@contextmanager
def service(arguments: argparse.Namespace, *flags: str) -> Iterator[int]:
    """A ready service in a process of its own; its port."""
    task = ["--task", str(arguments.task)] if arguments.task else ["--labels", ",".join(SEED_LABELS)]
    command = [*RUN, "serve", arguments.bundle, "--port", "0", "--quiet", "--deadline-s", "600", *task, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = ""
        while "ready after" not in said:
            line = process.stderr.readline()
            assert line, f"the service ended: {said}"
            said += line
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", said)
        assert found
        yield int(found[1])
        process.terminate()
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()


def measure(arguments: argparse.Namespace, texts: Sequence[str], expected: dict[str, Prediction]) -> dict[str, Any]:
    """Every mode with every number of clients."""

    def check(text: str, result: dict[str, Any]) -> bool:
        prediction = expected[text]
        return result["label"] == prediction.label and abs(result["score"] - (prediction.score or 0)) <= SCORE_TOLERANCE

    points: dict[str, Any] = {}
    for mode, flags in MODES.items():
        points[mode] = {}
        with service(arguments, *flags) as port:
            for clients in arguments.clients:
                source = cycle(texts)
                asyncio.run(load(port, clients, source, check, WARM_UP_S))
                found = asyncio.run(load(port, clients, source, check, arguments.seconds)).to_json()
                points[mode][str(clients)] = found
                _say(f"{mode}, {clients} clients: {json.dumps(found)}")
    return points


def measure_reference(arguments: argparse.Namespace, texts: Sequence[str], task: Task, source: str) -> dict[str, Any]:
    """The item-by-item PyTorch loop over the first texts."""
    from slm_export.reference import Reference
    from slm_export.sources import resolve

    reference = Reference.load(resolve(source).folder, num_threads=usable_threads())
    list(reference.scores(texts[:2], task))
    chosen = texts[: arguments.reference_limit]
    started = time.perf_counter()
    list(reference.scores(chosen, task))
    rate = len(chosen) / (time.perf_counter() - started)
    _say(f"PyTorch, item by item: {rate:.2f} items/s")
    return {"tickets": len(chosen), "items_per_s": rate}


def _texts_and_task(arguments: argparse.Namespace) -> tuple[str, list[str], Task]:
    if arguments.workload is None:
        return SEED, seed_tickets(), Task(SEED_LABELS)
    with open_tickets(str(arguments.workload), text_column="text", id_column=None) as reader:
        texts = [ticket.text for ticket in reader if ticket.text]
    return arguments.workload.name, texts, read_task(arguments.task)


def _say(message: str) -> None:
    sys.stderr.write(f"serve_load: {message}\n")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument(
        "--workload", type=Path, help="CSV, TSV or JSONL with a column text; default: the seed workload"
    )
    parser.add_argument("--task", type=Path, help="task file, for --workload")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",")], default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=20.0, help="of every point")
    parser.add_argument("--reference-limit", type=int, default=20, help="tickets of the PyTorch loop; 0 leaves it out")
    parser.add_argument("--soak", type=float, help="only watch memory, for so many seconds")
    parser.add_argument("--json", type=Path, help="default: standard output")
    arguments = parser.parse_args(argv)
    if (arguments.workload is None) != (arguments.task is None):
        parser.error("--workload and --task belong together")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write JSON; 0 when every answer was right and memory did not grow."""
    arguments = _parse(argv)
    name, texts, task = _texts_and_task(arguments)
    report: dict[str, Any] = {
        "machine": describe_machine(usable_threads()),
        "versions": versions(),
        "workload": {"name": name, "tickets": len(texts), "labels": len(task.labels)},
    }
    if arguments.soak:
        with service(arguments) as port:
            found = asyncio.run(soak(port, SOAK_CLIENTS, texts, arguments.soak)).to_json(arguments.soak)
        report["soak"] = found
        passed = not found["wrong"] and found["growth"] <= MAX_GROWTH
    else:
        classifier = Classifier.load(arguments.bundle)
        report["bundle"] = classifier.bundle.manifest.model.id
        source = classifier.bundle.manifest.model.source
        distinct = list(dict.fromkeys(texts))
        expected = dict(zip(distinct, classifier.classify(distinct, task), strict=True))
        del classifier
        report["seconds"] = arguments.seconds
        report["points"] = measure(arguments, texts, expected)
        if arguments.reference_limit:
            report["reference"] = measure_reference(arguments, texts, task, source)
        passed = not any(point["wrong"] for mode in report["points"].values() for point in mode.values())
    text = json.dumps(report, indent=1) + "\n"
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
