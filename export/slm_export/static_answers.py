"""Static graphs that are run by something else than CoreML, behind the runtime's own planning and scoring."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from slm_export.onnx_evaluate import Evaluation, Watch
from slm_runtime.bundle import Bundle
from slm_runtime.classifier import Classifier
from slm_runtime.coreml.choice import Decoders
from slm_runtime.coreml.row import Feeds
from slm_runtime.coreml.session import Compiled, OpenGraph, StaticDecoderSession
from slm_runtime.records import Prediction
from slm_runtime.static_graph import StaticGraphSpec

CPU = "CPUExecutionProvider"


class CpuGraph:
    """A static graph on onnxruntime's CPU provider, as it stands in the file or with all optimisations."""

    def __init__(self, path: Path, *, optimised: bool, num_threads: int) -> None:
        options = ort.SessionOptions()
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
        options.intra_op_num_threads = num_threads
        options.log_severity_level = 4  # stderr is for people, and every error is raised
        self._session = ort.InferenceSession(str(path.absolute()), options, providers=[CPU])
        self.nodes: dict[str, int] = {}
        self.partitions = 0

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[NDArray[Any]]:
        return self._session.run(output_names, feeds)


class RoundedGraph:
    """A static graph evaluated node by node, every tensor rounded to float16; `watch` sees them all."""

    def __init__(self, path: Path, watch: Watch) -> None:
        self._evaluation = Evaluation(onnx.load(path), torch.float16)
        self._watch = watch
        self.nodes: dict[str, int] = {}
        self.partitions = 0

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[NDArray[Any]]:
        outputs = self._evaluation.run(feeds, self._watch)
        return [outputs[name] for name in output_names]


def static_classifier(
    bundle: Bundle, specs: Sequence[StaticGraphSpec], open_file: Callable[[Path], OpenGraph], *, num_threads: int
) -> Classifier:
    """A classifier on some static graphs of one precision, and nothing else: what does not fit them is an error."""
    decoder = StaticDecoderSession(
        bundle.folder,
        bundle.manifest,
        [Compiled(spec, bundle.folder) for spec in specs],
        lambda graph: open_file(bundle.folder / graph.spec.file),
        provider=CPU,
        num_threads=num_threads,
    )
    return Classifier(bundle, Decoders(decoder))


@dataclass(frozen=True)
class Flip:
    """A ticket that got another label: the two best labels were `margin` nats apart before."""

    row: int
    expected: str
    found: str
    margin: float


@dataclass(frozen=True)
class Difference:
    """How far `tickets` answers are from others; `left_out` more did not fit the graphs.

    Log-probability differences are over the labels, in nats: the largest, and the median of the tickets' largest ones.
    """

    tickets: int
    left_out: int
    max_logprob_diff: float
    median_logprob_diff: float
    flips: tuple[Flip, ...]


def compare_answers(expected: Sequence[Prediction], found: Sequence[Prediction]) -> Difference:
    """How the predictions `found` differ from those `expected` of the same tickets, which have no errors."""
    pairs = [(a, b) for a, b in zip(expected, found, strict=True) if b.error is None]
    diffs = [float(np.abs(_logs(a) - _logs(b)).max()) for a, b in pairs]
    flips = tuple(Flip(a.row, a.label or "", b.label or "", a.margin or 0.0) for a, b in pairs if a.label != b.label)
    worst, median = (max(diffs), float(np.median(diffs))) if diffs else (0.0, 0.0)
    return Difference(len(pairs), len(expected) - len(pairs), worst, median, flips)


def _logs(prediction: Prediction) -> NDArray[np.float64]:
    scores = np.array([prediction.scores[label] for label in sorted(prediction.scores)])
    return np.log(np.maximum(scores, np.finfo(np.float64).tiny))
