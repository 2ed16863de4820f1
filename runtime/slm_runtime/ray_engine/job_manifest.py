"""`_slm_run.json` in the output folder: which run its parts belong to, and which of them are complete."""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slm_runtime.errors import InputError, OutputError
from slm_runtime.options import RunCounts
from slm_runtime.ray_engine.counting import add, from_json
from slm_runtime.ray_engine.parts import Part
from slm_runtime.ray_engine.storage import FileInfo, Storage
from slm_runtime.run_identity import Identity, check_identity

MANIFEST_FILE = "_slm_run.json"
FORMAT_VERSION = 1
# Writing the manifest may take this share of the time; a kill costs the parts since the last writing.
SAVING_SHARE = 0.05
SHOWN_NAMES = 3


@dataclass
class JobManifest:
    """A job and how far it is. `files` are its inputs, listed once, when it was started.

    `parts` holds the complete ones: part name to facts of its input and its rows; `counts`, `num_blank`, `num_replaced`
    and `num_low_mass` are theirs. `left_over` are parts of an earlier job, to be removed in the end.
    """

    output: Storage
    identity: Identity
    files: list[FileInfo]
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: RunCounts = field(default_factory=RunCounts)
    num_blank: int = 0
    num_replaced: int = 0
    num_low_mass: int = 0
    left_over: list[str] = field(default_factory=list)
    _saved_at: float = 0.0
    _saving_s: float = 0.0

    def complete(self, name: str, file: FileInfo, part: Part) -> None:
        """Note that a part has its name. Raises OutputError."""
        self.parts[name] = {"input": dataclasses.asdict(file), "rows": part.counts.rows, "errors": part.counts.errors}
        add(self.counts, part.counts)
        self.num_blank += part.end.num_blank
        self.num_replaced += part.end.num_replaced
        self.num_low_mass += part.num_low_mass
        if time.monotonic() - self._saved_at > self._saving_s / SAVING_SHARE:
            self.save()

    def save(self) -> None:
        """Write the manifest, whole or not at all. Raises OutputError."""
        started = time.monotonic()
        content = json.dumps(
            {
                "format": FORMAT_VERSION,
                "identity": self.identity,
                "files": [dataclasses.asdict(file) for file in self.files],
                "parts": self.parts,
                "counts": dataclasses.asdict(self.counts),
                "num_blank": self.num_blank,
                "num_replaced": self.num_replaced,
                "num_low_mass": self.num_low_mass,
                "left_over": self.left_over,
            },
            ensure_ascii=False,
        )
        with self.output.whole_file(MANIFEST_FILE) as stream:
            stream.write(content.encode("utf-8", "surrogateescape"))
        self._saved_at = time.monotonic()
        self._saving_s = self._saved_at - started

    def remove_left_over(self, kept: Sequence[str]) -> None:
        """Remove the parts of the job before, but for those that this one has replaced. Raises OutputError."""
        for name in set(self.left_over) - set(kept):
            self.output.delete(name)
        self.left_over = []


def open_job(
    output: Storage, identity: Identity, files: Sequence[FileInfo], *, resume: bool, overwrite: bool
) -> JobManifest:
    """A new job, or the one to go on with; nothing is written.

    Raises:
        OutputError: the folder holds something, and no flag says what may happen to it.
        InputError: the job there is not this one, or one of its inputs or parts has changed.
    """
    if resume and overwrite:
        raise InputError("--resume continues a run, --overwrite starts over; give one of them")
    before = _read(output)
    if before is None:
        _check_empty(output)
        return JobManifest(output, identity, list(files))
    if overwrite:
        return JobManifest(output, identity, list(files), left_over=[*before.left_over, *before.parts])
    if not before.parts and not before.left_over:  # nothing to lose, nothing to go on with
        return JobManifest(output, identity, list(files))
    if not resume:
        raise OutputError(
            f"{output.root}: a run is there, {len(before.parts)} of {len(before.files)} parts complete; "
            "continue it with --resume, or start over with --overwrite"
        )
    check_identity(output.root, before.identity, identity)
    _check_unchanged(before, files)
    return before


def _read(output: Storage) -> JobManifest | None:
    content = output.read(MANIFEST_FILE)
    if content is None:
        return None
    try:
        data: Mapping[str, Any] = json.loads(content.decode("utf-8", "surrogateescape"))
        if data["format"] != FORMAT_VERSION:
            raise ValueError(f"format {data['format']}, expected {FORMAT_VERSION}")
        return JobManifest(
            output,
            data["identity"],
            [FileInfo(**file) for file in data["files"]],
            data["parts"],
            from_json(data["counts"]),
            data["num_blank"],
            data["num_replaced"],
            data["num_low_mass"],
            data["left_over"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{output.path(MANIFEST_FILE)}: cannot be used ({error}); give another output folder, or remove this one"
        ) from error


def _check_empty(output: Storage) -> None:
    kind = output.kind()
    if kind not in ("folder", "nothing"):
        raise OutputError(f"{output.root}: is no folder; --engine ray writes a folder of parts")
    found = [file.name for file in output.files() if not file.name.rpartition("/")[2].startswith(".")]
    if found:
        raise OutputError(
            f"{output.root}: holds {len(found)} files ({', '.join(found[:SHOWN_NAMES])}) and no {MANIFEST_FILE}, "
            "so no run of slm-run wrote them; give a new or an empty folder"
        )


def _check_unchanged(job: JobManifest, files: Sequence[FileInfo]) -> None:
    """Finished parts must be there, and must be those of today's inputs; an input without a part may be repaired."""
    today = {file.name: file for file in files}
    there = {file.name for file in job.output.files()}
    for name, part in job.parts.items():
        before = FileInfo(**part["input"])
        now = today.get(before.name, before)
        if now != before:
            raise InputError(
                f"{before.name}: has changed since {name} was made of it ({before.size_bytes} bytes then, "
                f"{now.size_bytes} now, or another time); start over with --overwrite"
            )
        if name not in there:
            raise InputError(
                f"{job.output.root}: {name} is recorded as complete and is not there; put it back, or --overwrite"
            )
    job.files = [today.get(file.name, file) for file in job.files]
