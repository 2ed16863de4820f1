"""Weights in the layout that onnxruntime's kernels want, kept on disk: the second start maps them.

Such a file holds for one graph, one onnxruntime and one kind of processor, so it lives in the machine's cache and never
in a bundle. Mapped pages are shared between processes.
"""

import hashlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

import onnxruntime as ort

from slm_runtime.integrity import cache_folder
from slm_runtime.machine import cpu_name

GRAPH_FILE = "graph.onnx"
WEIGHTS_FILE = "weights.data"
# onnxruntime writes the weights twice, as they were and prepacked.
SIZE_FACTOR = 2
MIN_FREE_BYTES = 1_000_000_000
KEPT_COPIES = 4  # two bundles with two decoders each


class PrepackedGraph:
    """The place of one graph's prepacked copy. `ready` says whether it is there."""

    def __init__(self, graph_digest: str, num_bytes: int) -> None:
        key = f"{graph_digest}|{ort.__version__}|{platform.machine()}|{cpu_name()}"
        self._folder = cache_folder() / "prepacked" / hashlib.sha256(key.encode()).hexdigest()[:32]
        self._num_bytes = num_bytes
        self._staging: Path | None = None

    @property
    def path(self) -> Path:
        return self._folder / GRAPH_FILE

    @property
    def ready(self) -> bool:
        return self.path.is_file()

    def discard(self) -> None:
        """Forget a copy that could not be opened."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def write_with(self, options: ort.SessionOptions) -> bool:
        """Let the session opened with `options` write the copy; False where there is no room or no permission."""
        if os.environ.get("SLM_PREPACKED", "on") == "off":
            return False
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self._folder.parent).free < SIZE_FACTOR * self._num_bytes + MIN_FREE_BYTES:
                return False
            self._staging = Path(tempfile.mkdtemp(prefix="new-", dir=self._folder.parent))
        except OSError:
            return False
        options.optimized_model_filepath = str(self._staging / GRAPH_FILE)
        for key, value in (
            ("session.optimized_model_external_initializers_file_name", WEIGHTS_FILE),
            ("session.optimized_model_external_initializers_min_size_in_bytes", "1024"),
            ("session.save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(key, value)
        return True

    def finish(self) -> None:
        """Give the copy its name; where another process was faster, its copy stays."""
        if self._staging is not None:
            try:
                self._staging.rename(self._folder)
                _drop_oldest(self._folder.parent)
            except OSError:
                self.abandon()
        self._staging = None

    def abandon(self) -> None:
        """Remove a copy that was not finished."""
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)
        self._staging = None


def _drop_oldest(folder: Path) -> None:
    """Keep the newest copies. Unfinished ones of killed processes grow old and go the same way."""
    newest_first = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first[KEPT_COPIES:]:
        shutil.rmtree(path, ignore_errors=True)
