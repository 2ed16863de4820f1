"""onnxruntime with a CoreML provider that computes on the CPU, so that numbers are real and every failure can be had.

As a script it is the probe's child process on that onnxruntime: `python fake_coreml.py BUNDLE GRAPH CACHE THREADS`.
What goes wrong is said in the environment, for the child and for the parent: `nan`, or `nan:s64` for one graph.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

CHILD, PARENT, LOG = "FAKE_COREML_CHILD", "FAKE_COREML_PARENT", "FAKE_COREML_LOG"
COREML, CPU = "CoreMLExecutionProvider", "CPUExecutionProvider"


class FakeOrt:
    """Stands in for the module `onnxruntime`; `failure` goes wrong."""

    def __init__(self, failure: str = "", version: str = ort.__version__) -> None:
        self._failure, _, self._where = failure.partition(":")
        self.__version__ = version

    def __getattr__(self, name: str) -> Any:
        return getattr(ort, name)

    def get_available_providers(self) -> list[str]:
        return [CPU] if self._failure == "missing" else [COREML, CPU]

    def InferenceSession(  # noqa: N802 (the name of the real one)
        self,
        path: str,
        options: ort.SessionOptions,
        *,
        providers: list[tuple[str, dict[str, str]]],
        enable_fallback: int,
    ) -> "FakeSession":
        ((name, provider_options),) = providers
        assert name == COREML
        assert enable_fallback == 0
        failure = self._failure if self._where in path else ""
        cache = Path(provider_options["ModelCacheDirectory"])
        compiled = cache / "key" / "model"
        note(path, options, provider_options, cached=compiled.exists())
        if failure == "crash":
            os.kill(os.getpid(), signal.SIGABRT)
        if failure == "hang":
            time.sleep(60)
        if failure == "raises":
            raise RuntimeError("Error compiling model:\n  no such MIL op")
        compiled.parent.mkdir(parents=True, exist_ok=True)
        compiled.touch()
        return FakeSession(path, failure)


class FakeSession:
    """The graph on the CPU, said to be on CoreML."""

    def __init__(self, path: str, failure: str) -> None:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        self._session = ort.InferenceSession(path, options, providers=[CPU])
        self._failure = failure

    def get_providers(self) -> list[str]:
        return [CPU] if self._failure == "silent fallback" else [COREML, CPU]

    def get_provider_graph_assignment_info(self) -> list[SimpleNamespace]:
        nodes = [node for part in self._session.get_provider_graph_assignment_info() for node in part.get_nodes()]
        parts = [(COREML, nodes)]
        if self._failure == "node fallback":
            parts = [(COREML, nodes[1:]), (CPU, nodes[:1])]
        if self._failure == "no assignment":
            parts = []
        return [SimpleNamespace(ep_name=name, get_nodes=lambda some=some: some) for name, some in parts]

    def run(self, output_names: Sequence[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert all(0 not in array.shape for array in feeds.values()), "CoreML takes no empty tensor"
        if self._failure == "run raises":
            raise RuntimeError("Error executing model: -1")
        hidden, *present = self._session.run(list(output_names), feeds)
        if self._failure == "nan":
            hidden = np.full_like(hidden, np.nan)
        if self._failure == "infinite":
            hidden = np.full_like(hidden, np.inf)
        if self._failure == "wrong":
            hidden = hidden + np.linspace(-3, 3, hidden.shape[1], dtype=hidden.dtype)
        return [hidden, *present]


def note(path: str, options: ort.SessionOptions, provider_options: dict[str, str], *, cached: bool) -> None:
    """Remember how a session was opened."""
    if log := os.environ.get(LOG):
        settings = ("disable_cpu_ep_fallback", "record_ep_graph_assignment_info", "disable_aot_function_inlining")
        entry = {
            "pid": os.getpid(),
            "graph": Path(path).name,
            "cached": cached,
            "options": provider_options,
            "settings": {name: options.get_session_config_entry(f"session.{name}") for name in settings},
            "optimised": options.graph_optimization_level != ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
        }
        with Path(log).open("a") as stream:
            stream.write(json.dumps(entry) + "\n")


class Mac:
    """This process and its children, with the fake onnxruntime."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        from slm_runtime.coreml import child

        self.cache = folder / "cache"
        self.log = folder / "log.jsonl"
        self._patch = patch
        patch.setenv("SLM_CACHE_DIR", str(self.cache))
        patch.setenv(LOG, str(self.log))
        patch.setattr(child, "probe_command", self._command)
        self.fail()

    def fail(self, *, child: str = "", parent: str = "", version: str = ort.__version__) -> None:
        """What goes wrong from now on."""
        from slm_runtime.coreml import choice, provider, versions

        self._patch.setenv(CHILD, child)
        fake = FakeOrt(parent, version)
        for module in (choice, provider, versions):
            self._patch.setattr(module, "ort", fake)

    def take_opened(self) -> list[dict[str, Any]]:
        """Every session that was opened since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def _command(self, folder: Path, spec: Any, cache: Path, num_threads: int) -> list[str]:
        return [sys.executable, __file__, str(folder), spec.file, str(cache), str(num_threads)]


if __name__ == "__main__":
    from slm_runtime.coreml import choice, probe, provider

    fake = FakeOrt(os.environ[CHILD])
    choice.ort = provider.ort = fake  # type: ignore[attr-defined]
    probe.main(sys.argv[1:])
