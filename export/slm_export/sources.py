"""From slm-export's MODEL argument to a plain local checkpoint folder."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slm_export.catalog import CatalogEntry, fetch_gguf, find_entry, hub_free_hint
from slm_export.checkpoint_folder import check_checkpoint_folder, folder_licence
from slm_runtime.errors import SourceError
from slm_runtime.integrity import cache_folder, sha256_of

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
PINNED_REVISIONS = {DEFAULT_MODEL: "7ae557604adf67be50417f59c2c2f167def9a775"}


@dataclass(frozen=True)
class Checkpoint:
    """A folder in transformers' layout, complete and free of code and pickles, and where it came from.

    `revision` is the hub's commit, the sha256 of the GGUF file, or None for a folder. `licence` is an SPDX
    name where known, else what the source states, else `unknown`.
    """

    folder: Path
    model_id: str
    revision: str | None
    kind: Literal["hub", "folder", "gguf", "catalogue"]
    licence: str


def say_on_stderr(message: str) -> None:
    """Progress for people; stdout is for data."""
    sys.stderr.write(f"slm-export: {message}\n")


def resolve(
    model: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    say: Callable[[str], None] = say_on_stderr,
) -> Checkpoint:
    """The checkpoint that MODEL names: catalogue name, folder, `.gguf` file or hub id, tried in this order.

    Raises: SourceError if it cannot be fetched, read or trusted; ResourceError before anything is fetched.
    """
    path = Path(model).expanduser()
    entry = find_entry(model)
    if revision and (entry or path.exists()):
        raise SourceError(f"{model}: --revision {revision} belongs to a hub id, and this is not one. Leave it out.")
    if entry:
        return _from_catalogue(entry, cache_dir or cache_folder(), offline=offline, say=say)
    if path.is_dir():
        check_checkpoint_folder(path, trust_remote_code=trust_remote_code)
        return Checkpoint(path, path.resolve().name, None, "folder", folder_licence(path))
    if path.is_file():
        return _from_gguf(path, cache_dir or cache_folder(), say)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", model) or model.endswith(".gguf"):
        raise SourceError(
            f"{model}: no such folder or .gguf file, and neither a catalogue name nor a hub id such as "
            f"{DEFAULT_MODEL}. {hub_free_hint()}"
        )
    return _from_hub(
        model,
        revision or PINNED_REVISIONS.get(model, "main"),
        cache_dir,
        offline=offline,
        trust_remote_code=trust_remote_code,
        say=say,
    )


def _from_hub(
    model: str,
    revision: str,
    cache_dir: Path | None,
    *,
    offline: bool,
    trust_remote_code: bool,
    say: Callable[[str], None],
) -> Checkpoint:
    from slm_export.hub import HubRequest, fetch_snapshot

    # Without --cache-dir the hub's usual cache: what other tools have fetched is not fetched again.
    hub_cache = cache_dir / "hub" if cache_dir else None
    folder = fetch_snapshot(HubRequest(model, revision, hub_cache, trust_remote_code), offline=offline, say=say)
    check_checkpoint_folder(folder, trust_remote_code=trust_remote_code)
    return Checkpoint(folder, model, folder.name, "hub", folder_licence(folder))


def _from_gguf(path: Path, cache_dir: Path, say: Callable[[str], None]) -> Checkpoint:
    from slm_export.gguf_checkpoint import convert, converted_licence

    if path.suffix != ".gguf":
        raise SourceError(f"{path}: a file, but not a .gguf one. Give a .gguf file or a checkpoint folder.")
    sha256 = sha256_of(path)
    folder = convert(path, sha256, cache_dir, say)
    return Checkpoint(folder, path.name, sha256, "gguf", converted_licence(folder))


def _from_catalogue(entry: CatalogEntry, cache_dir: Path, *, offline: bool, say: Callable[[str], None]) -> Checkpoint:
    from slm_export.gguf_checkpoint import convert, converted_folder

    # The catalogue states the sha256: once converted, the GGUF file is not even read again.
    folder = converted_folder(entry.sha256, cache_dir)
    if not folder.is_dir():
        path = fetch_gguf(entry, cache_dir, offline=offline, say=say)
        folder = convert(path, entry.sha256, cache_dir, say)
    return Checkpoint(folder, entry.name, entry.sha256, "catalogue", entry.licence)
