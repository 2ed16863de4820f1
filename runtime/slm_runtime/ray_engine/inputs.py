"""Which files a job reads, listed once, and what their parts are called."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from slm_runtime.errors import InputError, OutputError
from slm_runtime.ray_engine.storage import FileInfo, Storage, redacted, split_query
from slm_runtime.readers import FORMATS, PARQUET, is_ticket_file

_WILDCARD = re.compile(r"[*?[]")
_HIDDEN = (".", "_")
SHOWN_NAMES = 3


@dataclass(frozen=True)
class Selection:
    """The files below `storage` that an input address means.

    `pattern` is a glob, or None for a whole folder, or the name of one file where `is_file`; `any_ending` is set when
    the format is given.
    """

    storage: Storage
    pattern: str | None
    any_ending: bool
    is_file: bool = False

    def accepts(self, name: str) -> bool:
        """True for the name of an input. Names with a dot or underscore in front are only meant by a glob that has it.

        `*` stays within a folder, `**` is any number of folders.
        """
        if self.is_file:
            return name == self.pattern
        pattern = self.pattern or "**/*"
        readable = self.any_ending or is_ticket_file(name)
        return readable and _matches(name.split("/"), pattern.split("/"))

    def holds(self, storage: Storage, name: str) -> bool:
        """True when a file of another storage would be an input."""
        same = storage.filesystem.equals(self.storage.filesystem)
        path, start = storage.path(name), self.storage.path("")
        return same and path.startswith(start) and self.accepts(path[len(start) :])

    def list_files(self) -> list[FileInfo]:
        """The inputs of this moment, sorted by name.

        Raises:
            InputError: there is none.
        """
        if self.is_file and self.pattern is not None:
            return [self.storage.file(self.pattern)]
        recursive = self.pattern is None or "/" in self.pattern
        found = self.storage.files(recursive=recursive)
        files = [file for file in found if self.accepts(file.name)]
        if not files:
            seen = ", ".join(file.name for file in found[:SHOWN_NAMES]) or "nothing"
            expected = "any file" if self.any_ending else f"files that end in {', '.join(FORMATS)} or {PARQUET}"
            raise InputError(
                f"{self.storage.path(self.pattern or '')}: no input there (found {seen}); "
                f"expected {expected}, none of them hidden by a dot or underscore"
            )
        return files


def select_inputs(address: str, *, any_ending: bool) -> Selection:
    """The selection of a file, a folder or a glob, each as a path or a URL.

    Raises:
        InputError: there is nothing, or the URL is of an unknown kind.
    """
    bare, query = split_query(address)
    storage = Storage.at(address) if "://" not in address or not _WILDCARD.search(bare) else None
    kind = "nothing" if storage is None else storage.kind()
    if storage is not None and kind == "file":
        return Selection(storage.parent, PurePosixPath(storage.root).name, any_ending, is_file=True)
    if storage is not None and kind == "folder":
        return Selection(storage, None, any_ending)
    segments = bare.split("/")
    first = next((index for index, segment in enumerate(segments) if _WILDCARD.search(segment)), None)
    if first is None:
        expected = "a file, a folder or a glob" if kind == "nothing" else "a regular file, a folder or a glob"
        raise InputError(
            f"{redacted(address)}: {'not found' if kind == 'nothing' else 'a special file'}, expected {expected}"
        )
    base = "/".join(segments[:first]) or ("/" if bare.startswith("/") else ".")
    return Selection(Storage.at(base + query), "/".join(segments[first:]), any_ending)


def part_names(files: Sequence[FileInfo], output_format: str) -> dict[str, str]:
    """Input name to the name of its part: the same folder and stem.

    Raises:
        InputError: two inputs would have the same part.
    """
    parts: dict[str, str] = {}
    taken: dict[str, str] = {}
    for file in files:
        part = f"{_without_ending(file.name)}.{output_format}"
        if part in taken:
            raise InputError(
                f"{taken[part]} and {file.name} would both be written to {part}; rename one, or give them to two runs"
            )
        taken[part] = file.name
        parts[file.name] = part
    return parts


def check_outside(selection: Selection, output: Storage, parts: Iterable[str]) -> None:
    """Return when no part would be an input of the next run. Raises OutputError."""
    for part in parts:
        if selection.holds(output, part):
            raise OutputError(
                f"{output.root}: lies in the input, where {part} would be taken for tickets by the next run; "
                "give a folder outside, or one whose name starts with an underscore"
            )


def _without_ending(name: str) -> str:
    stem = name[: -len(".gz")] if name.lower().endswith(".gz") else name
    return str(PurePosixPath(stem).with_suffix("")) if is_ticket_file(stem) else name


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not name:
        return not pattern and not name
    if pattern[0] == "**":
        skipped = name[0][0] not in _HIDDEN and len(name) > 1 and _matches(name[1:], pattern)
        return skipped or _matches(name, pattern[1:])
    shown = name[0][0] not in _HIDDEN or pattern[0][0] == name[0][0]
    return shown and fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])
