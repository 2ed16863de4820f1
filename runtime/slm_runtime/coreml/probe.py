"""Try one graph out: compile it, ask it the golden tickets, leave a verdict. Run as a process of its own.

`python -m slm_runtime.coreml.probe BUNDLE GRAPH CACHE THREADS`: what CoreML does in here may end the process.
"""

import math
import sys
from functools import partial
from pathlib import Path

from slm_runtime.bundle import read_bundle
from slm_runtime.classifier import Classifier
from slm_runtime.coreml.choice import Decoders
from slm_runtime.coreml.provider import COREML, GraphRefusedError, open_compiled
from slm_runtime.coreml.session import Compiled, StaticDecoderSession
from slm_runtime.coreml.verdict import TOLERANCE_NATS, Outcome, Verdict, agrees, write_verdict
from slm_runtime.errors import ProviderError
from slm_runtime.golden import compare, fitting, read_golden
from slm_runtime.manifest import read_manifest
from slm_runtime.static_graph import StaticPrecision


def probe(folder: Path, graph_file: str, cache: Path, num_threads: int) -> Verdict:
    """The verdict on one graph of a bundle whose files were checked."""
    manifest = read_manifest(folder)
    graph = Compiled(next(spec for spec in manifest.coreml if spec.file == graph_file), cache)
    decoder = StaticDecoderSession(
        folder, manifest, [graph], partial(open_compiled, folder), provider=COREML, num_threads=num_threads
    )
    try:
        decoder.open_smallest()
        classifier = Classifier(read_bundle(folder, manifest), Decoders(decoder))
        sets = (fitting(classifier, golden) for golden in read_golden(folder))
        records = [compare(classifier, golden) for golden in sets if golden.texts]
    except ProviderError as error:
        return Verdict("refused", str(error.__cause__ if isinstance(error.__cause__, GraphRefusedError) else error))
    num_tickets = sum(record.num_tickets for record in records)
    equal = sum(record.labels_equal for record in records)
    worst = max((record.max_logprob_diff for record in records), default=math.inf)
    (entry,) = decoder.describe()
    outcome, detail = _judge(graph.spec.precision, num_tickets, equal, worst)
    return Verdict(
        outcome,
        detail,
        entry["nodes"],
        entry["partitions"],
        num_tickets,
        equal,
        worst if math.isfinite(worst) else None,
    )


def _judge(precision: StaticPrecision, num_tickets: int, equal: int, worst: float) -> tuple[Outcome, str]:
    if not num_tickets:
        return "refused", "no golden ticket fits the graph, so it cannot be tried out"
    if not math.isfinite(worst):
        return "not a number", "a golden ticket was answered with NaN or infinity"
    if not agrees(precision, num_tickets, equal, worst):
        return "mismatch", (
            f"{equal}/{num_tickets} golden labels equal, max |log-prob difference| {worst:.1e} "
            f"(tolerance {TOLERANCE_NATS[precision]:.0e})"
        )
    return "passed", ""


def main(argv: list[str]) -> None:
    folder, graph_file, cache, threads = argv
    write_verdict(Path(cache), probe(Path(folder), graph_file, Path(cache), int(threads)))


if __name__ == "__main__":
    main(sys.argv[1:])
