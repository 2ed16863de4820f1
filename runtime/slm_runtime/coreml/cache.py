"""Compiled models on this machine. A folder gets its name when its model was tried out and passed, not before."""

import hashlib
import shutil
import tempfile
import time
from pathlib import Path

from slm_runtime.coreml.verdict import Verdict, read_verdict
from slm_runtime.coreml.versions import Versions
from slm_runtime.integrity import cache_folder
from slm_runtime.static_graph import StaticGraphSpec

KEPT_VERSIONS = 2
# A folder that was not finished within a day belongs to a process that died.
ABANDONED_AFTER_S = 24 * 3600
STAGING_PREFIX = "new-"


class CompiledCache:
    """The place of one graph's compiled model. onnxruntime itself never notices that a model there is out of date."""

    def __init__(self, versions: Versions, spec: StaticGraphSpec) -> None:
        self._versions_folder = versions_folder(versions)
        self.folder = self._versions_folder / graph_key(spec)

    @property
    def verdict(self) -> Verdict | None:
        """How the model there passed; None where there is none that did."""
        verdict = read_verdict(self.folder)
        return verdict if verdict and verdict.outcome == "passed" else None

    def stage(self) -> Path:
        """A new folder to compile into. Raises OSError where the cache cannot be written."""
        self._versions_folder.mkdir(parents=True, exist_ok=True)
        _drop_abandoned(self._versions_folder)
        return Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=self._versions_folder))

    def publish(self, staged: Path) -> None:
        """Give a folder that passed its name; where another process was faster, its folder stays.

        Raises:
            OSError: the folder cannot be renamed.
        """
        if self.folder.exists() and self.verdict is None:
            self.discard()
        try:
            staged.rename(self.folder)
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            if self.verdict is None:
                raise
        _drop_old_versions(self._versions_folder)

    def discard(self) -> None:
        """Forget a model that cannot be used."""
        shutil.rmtree(self.folder, ignore_errors=True)


def graph_key(spec: StaticGraphSpec) -> str:
    """A name for what belongs to one graph; the manifest's own key may hold anything."""
    return hashlib.sha256(f"{spec.file} {spec.cache_key}".encode()).hexdigest()[:32]


def versions_folder(versions: Versions) -> Path:
    """Where everything that belongs to these versions lies."""
    return cache_folder() / "coreml" / versions.key


def _drop_abandoned(folder: Path) -> None:
    for path in folder.glob(f"{STAGING_PREFIX}*"):
        if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S:
            shutil.rmtree(path, ignore_errors=True)


def _drop_old_versions(current: Path) -> None:
    """Keep the current versions and the newest of the others."""
    others = [path for path in current.parent.iterdir() if path.is_dir() and path != current]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT_VERSIONS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
