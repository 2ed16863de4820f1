"""Commands run in this process, on a bundle of a tiny random model."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_models import make_checkpoint

from slm_export.cli import main as slm_export
from slm_runtime.cli import main as slm_run


@dataclass
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny", "qwen2", tied=True)


@pytest.fixture(scope="session")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by all tests: copy before you damage it."""
    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    assert slm_export([str(checkpoint), "--output", str(folder)]) == 0
    return folder


@pytest.fixture
def own_bundle(bundle: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*argv: str | Path, main: Callable[[Sequence[str]], int] = slm_run) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in argv])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture(scope="session")
def int8_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both decoders and measured bounds; shared by all tests: copy before you damage it."""
    folder = tmp_path_factory.mktemp("bundles") / "tiny-int8"
    assert slm_export([str(checkpoint), "--output", str(folder), "--precision", "fp32", "--precision", "int8"]) == 0
    return folder
