"""Graphs on onnxruntime's CoreML provider, and the proof that they run there and nowhere else."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from slm_runtime.coreml.row import Feeds
from slm_runtime.coreml.session import Compiled
from slm_runtime.errors import ProviderError
from slm_runtime.session import PROVIDERS
from slm_runtime.static_graph import StaticPrecision

COREML = PROVIDERS["coreml"]
# CoreML runs float32 on CPU and GPU only; with ALL it splits a graph between GPU and neural engine, which is slow.
COMPUTE_UNITS: dict[StaticPrecision, str] = {"fp32": "CPUAndGPU", "fp16": "CPUAndNeuralEngine"}
# Without them onnxruntime moves what CoreML refuses to the CPU, or cuts the graph up before CoreML sees it.
STRICT_SETTINGS = (
    "session.disable_cpu_ep_fallback",
    "session.record_ep_graph_assignment_info",
    "session.disable_aot_function_inlining",
)


class GraphRefusedError(ProviderError):
    """CoreML does not run the graph, or not all of it."""


class CoremlGraph:
    """One open graph, every node of it on CoreML, in `partitions` pieces. `nodes` counts them by provider.

    Raises:
        GraphRefusedError: the session cannot be made, or a node is not on CoreML.
    """

    def __init__(self, path: Path, precision: StaticPrecision, cache: Path) -> None:
        provider = (COREML, provider_options(precision, cache))
        try:
            self._session = ort.InferenceSession(
                str(path.absolute()), _options(), providers=[provider], enable_fallback=0
            )
        except Exception as error:  # onnxruntime raises a dozen unrelated classes
            raise GraphRefusedError(f"CoreML cannot open it ({_reason(error)})") from error
        found = self._session.get_providers()
        if found[:1] != [COREML]:
            raise GraphRefusedError(f"onnxruntime put it on {', '.join(found)} instead of {COREML}")
        assigned = self._session.get_provider_graph_assignment_info()
        self.nodes = _assigned_nodes(assigned)
        self.partitions = len(assigned)
        if list(self.nodes) != [COREML]:
            where = ", ".join(f"{number} on {name}" for name, number in self.nodes.items()) or "none reported"
            raise GraphRefusedError(f"not all nodes are on {COREML} ({where})")

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[NDArray[Any]]:
        """The named outputs. Raises GraphRefusedError."""
        try:
            return self._session.run(output_names, feeds)
        except Exception as error:  # as above
            raise GraphRefusedError(f"CoreML cannot run it ({_reason(error)})") from error


def open_compiled(folder: Path, graph: Compiled) -> CoremlGraph:
    """A graph of the bundle in `folder`; compiled now if its cache is empty. Raises GraphRefusedError."""
    return CoremlGraph(folder / graph.spec.file, graph.spec.precision, graph.cache)


def provider_options(precision: StaticPrecision, cache: Path) -> dict[str, str]:
    """What CoreML is told; defaults that matter are named, because they have changed before."""
    return {
        "ModelFormat": "MLProgram",
        "MLComputeUnits": COMPUTE_UNITS[precision],
        "RequireStaticInputShapes": "1",
        "AllowLowPrecisionAccumulationOnGPU": "0",
        "ModelCacheDirectory": str(cache.absolute()),
    }


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    # The graph is written as CoreML wants it; what onnxruntime would make of it CoreML takes in more pieces.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # stderr is for people, and every error is raised
    for setting in STRICT_SETTINGS:
        options.add_session_config_entry(setting, "1")
    return options


def _reason(error: Exception) -> str:
    """The beginning of what onnxruntime said, in one line."""
    return " ".join(str(error).split())[:300]


def _assigned_nodes(assigned: Sequence[Any]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for part in assigned:
        counts[part.ep_name] += len(part.get_nodes())
    return dict(counts)
