"""Every float32 graph of a bundle's CoreML profile on the CPU provider against the bundle's own decoder.

python tests/bench/coreml_parity.py --bundle models/NAME [--limit N] [--json FILE]

The seed's tickets, as the runtime lays them out: packed rows with the prompts' prefix in the past, packed rows of whole
prompts, in the smallest graph single tickets too; the graph as it stands in its file and with all of onnxruntime's
optimisations.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from slm_export.static_answers import CpuGraph, compare_answers, static_classifier
from slm_runtime.bundle import open_bundle
from slm_runtime.classifier import Classifier
from slm_runtime.machine import versions
from slm_runtime.options import RunOptions
from slm_runtime.planning import Strategy
from slm_runtime.task import Task
from slm_runtime.threads import usable_threads
from slm_runtime.workloads import SEED_LABELS, seed_tickets

TOLERANCE_NATS = 1e-3
Layout = tuple[Strategy, bool]  # and whether the prefix is in the past
PACKED: tuple[Layout, ...] = (("packed", True), ("packed", False))
# A row for every ticket is mostly padding: in larger graphs more of the same.
SMALLEST: tuple[Layout, ...] = (*PACKED, ("item", True))


def measure(folder: str, limit: int) -> Iterator[dict[str, Any]]:
    """One record for every graph, optimisation level and layout."""
    bundle, threads = open_bundle(folder), usable_threads()
    texts, task = seed_tickets(limit), Task(SEED_LABELS)
    expected = Classifier.load(folder, threads=threads).classify(texts, task)
    graphs = sorted(
        (spec for spec in bundle.manifest.coreml if spec.precision == "fp32"), key=lambda spec: spec.num_tokens
    )
    for spec, optimised in product(graphs, (False, True)):
        graph = CpuGraph(bundle.folder / spec.file, optimised=optimised, num_threads=threads)
        classifier = static_classifier(bundle, [spec], lambda _, graph=graph: graph, num_threads=threads)
        for strategy, cached in SMALLEST if spec == graphs[0] else PACKED:
            started = time.perf_counter()
            found = classifier.classify(texts, task, RunOptions(strategy=strategy, prefix_cache=cached))
            yield {
                "graph": spec.file,
                "optimised": optimised,
                "strategy": strategy,
                "prefix_cache": cached,
                "seconds": round(time.perf_counter() - started, 1),
                **asdict(compare_answers(expected, found)),
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    records = []
    for record in measure(arguments.bundle, arguments.limit):
        records.append(record)
        print(json.dumps(record), flush=True)
    if arguments.json:
        report = {"versions": versions(), "limit": arguments.limit, "runs": records}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    passed = all(not record["flips"] and record["max_logprob_diff"] <= TOLERANCE_NATS for record in records)
    return 0 if passed else 3


if __name__ == "__main__":
    sys.exit(main())
