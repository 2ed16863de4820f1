"""Are the files of a bundle the ones that were exported? Sizes always, sha256 once per file version and machine."""

import hashlib
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slm_runtime.errors import DigestError
from slm_runtime.manifest import FileRecord, Manifest


def cache_folder() -> Path:
    """The machine-local cache: `$SLM_CACHE_DIR`, else `$XDG_CACHE_HOME/slm-runtime`, else `~/.cache/slm-runtime`."""
    if chosen := os.environ.get("SLM_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slm-runtime"


def sha256_of(path: Path) -> str:
    """Hex sha256 of the file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_files(folder: Path, manifest: Manifest, *, always_hash: bool = False) -> None:
    """Return when every file of the bundle is the one that the manifest records.

    A file whose size, inode and times have not changed since it was last hashed on this machine is not hashed
    again, unless `always_hash`.

    Raises:
        DigestError: a file is missing, or has another size or another sha256.
    """
    for name, record in manifest.files.items():
        _check_size(folder / name, record)
    stamps = {name: _stamp(folder / name) for name in manifest.files}
    stamp_file = cache_folder() / "verified" / f"{manifest.digest}.json"
    known = {} if always_hash else _read_stamps(stamp_file)
    changed = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    with ThreadPoolExecutor() as pool:
        digests = pool.map(lambda name: sha256_of(folder / name), changed)
        for name, digest in zip(changed, digests, strict=True):
            if digest != (expected := manifest.files[name].sha256):
                raise DigestError(
                    f"{folder / name}: sha256 {digest[:16]}…, the manifest says {expected[:16]}…; "
                    "the file was changed or damaged after the export: copy the bundle again or export it again"
                )
    if changed:
        _write_stamps(stamp_file, stamps)


def _check_size(path: Path, record: FileRecord) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DigestError(
            f"{path}: missing ({error.strerror}), the manifest lists {record.size_bytes} bytes; "
            "copy the whole bundle again"
        ) from error
    if found != record.size_bytes:
        raise DigestError(
            f"{path}: {found} bytes, the manifest says {record.size_bytes}; "
            "the copy is incomplete or damaged: copy the bundle again or export it again"
        )


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _read_stamps(path: Path) -> dict[str, list[int]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write_stamps(path: Path, stamps: dict[str, list[int]]) -> None:
    """Remember the check; a cache folder that cannot be written only costs the next start a second hash."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as stream:
            json.dump(stamps, stream)
        Path(stream.name).replace(path)
    except OSError:
        return
