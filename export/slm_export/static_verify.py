"""The last step of a CoreML export: every static graph, on the CPU provider, against the PyTorch reference."""

from collections.abc import Callable, Sequence
from pathlib import Path

from slm_export.static_answers import CpuGraph, static_classifier
from slm_runtime.bundle import Bundle, read_bundle
from slm_runtime.errors import ParityError
from slm_runtime.golden import GoldenSet, compare, fitting
from slm_runtime.manifest import Manifest, ParityRecord
from slm_runtime.static_graph import StaticGraphSpec
from slm_runtime.threads import usable_threads

Say = Callable[[str], None]
# The CPU computes float16 graphs in float32 between roundings: this finds wrong graphs, not what float16 costs.
FLOAT16_TOLERANCE_NATS = 0.5


def verify_static_graphs(folder: Path, manifest: Manifest, sets: Sequence[GoldenSet], *, say: Say) -> None:
    """Return when the golden tickets that fit a graph have the reference's answers on it, for every graph.

    Labels must be equal on float32 graphs; float16 may decide a near tie otherwise.

    Raises:
        ParityError: names the graph and what was off.
    """
    bundle = read_bundle(folder, manifest)
    for spec in manifest.coreml:
        records = _records(bundle, spec, sets)
        worst = max((record.max_logprob_diff for record in records), default=0.0)
        tickets = sum(record.num_tickets for record in records)
        equal = sum(record.labels_equal for record in records)
        say(f"{spec.file}: {equal}/{tickets} labels equal, max |log-prob difference| {worst:.1e}")
        exact = spec.precision == "fp32"
        tolerance = max((record.tolerance for record in records), default=0.0) if exact else FLOAT16_TOLERANCE_NATS
        if not worst <= tolerance or (exact and equal < tickets):
            raise ParityError(
                f"{spec.file}: differs from PyTorch ({equal}/{tickets} labels equal, difference {worst:.1e}, "
                f"tolerance {tolerance:.0e}); no bundle was kept"
            )


def _records(bundle: Bundle, spec: StaticGraphSpec, sets: Sequence[GoldenSet]) -> list[ParityRecord]:
    threads = usable_threads()
    classifier = static_classifier(
        bundle, [spec], lambda path: CpuGraph(path, optimised=False, num_threads=threads), num_threads=threads
    )
    fitting_sets = (fitting(classifier, golden) for golden in sets)
    return [compare(classifier, golden) for golden in fitting_sets if golden.texts]
