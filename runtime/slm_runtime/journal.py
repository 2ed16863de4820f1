"""The journal of a run: what is finished, so that an interrupted run can be continued.

A line is the CRC-32 of its JSON in eight hex digits, a blank, the JSON. The first line says which run it is; each line
after it holds the predictions that were made together. A line counts when it is whole: after a crash the journal is cut
at the first line that is not, and what was lost is computed again.
"""

import json
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from slm_runtime.errors import InputError, OutputError
from slm_runtime.records import Prediction, Ticket

FORMAT_VERSION = 1
# A power cut loses at most what was written in so many seconds.
SYNC_EVERY_S = 1.0


def journal_path(output: Path) -> Path:
    """Where the journal of `output` lies while the run is not complete."""
    return output.with_name(output.name + ".journal")


def is_started(path: Path) -> bool:
    """True for a journal that got as far as its first line; before that there is nothing to go on with."""
    if not path.exists():
        return False
    with path.open("rb") as stream:
        return stream.readline().endswith(b"\n")


class Journal:
    """Append-only; a context manager that closes the file and leaves it there. `discard` removes it.

    `num_rows` are recorded, by earlier runs and this one; `num_lost_bytes` were cut from a damaged end. Without any row
    the file is removed at the end.
    """

    def __init__(self, path: Path, stream: BinaryIO, header: dict[str, Any]) -> None:
        self.path = path
        self.header = header
        self.num_rows = 0
        self.num_lost_bytes = 0
        self._stream = stream
        self._synced = time.monotonic()
        self._recorded: Iterator[dict[int, Prediction]] = iter(())
        self._next: dict[int, Prediction] | None = None

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Self:
        """A new journal; one that is there already is replaced.

        Raises:
            OutputError: the file cannot be written.
        """
        try:
            journal = cls(path, path.open("wb"), header)
            journal._write({"format": FORMAT_VERSION, **header})
            journal.sync()
        except OSError as error:
            raise _unwritable(path, error) from error
        return journal

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """The journal of an earlier run, cut after its last whole line.

        Raises:
            InputError: it cannot be read, or its first line is damaged or of another version.
        """
        try:
            stream = path.open("r+b")
            header = _parse(stream.readline())
            if not isinstance(header, dict) or header.pop("format", None) != FORMAT_VERSION:
                stream.close()
                raise InputError(
                    f"{path}: its first line is not that of a journal of this version; "
                    "delete the file, or start over with --overwrite"
                )
            journal = cls(path, stream, header)
            journal._cut_torn_end()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        return journal

    def _cut_torn_end(self) -> None:
        first = end = self._stream.tell()
        while (group := _parse(line := self._stream.readline())) is not None:
            self.num_rows += len(group)
            end += len(line)
        self.num_lost_bytes = self._stream.seek(0, os.SEEK_END) - end
        self._stream.truncate(end)
        self._recorded = self._read_groups(first, end)
        self._next = next(self._recorded, None)

    def _read_groups(self, start: int, end: int) -> Iterator[dict[int, Prediction]]:
        with self.path.open("rb") as stream:
            stream.seek(start)
            while stream.tell() < end:
                group = _parse(stream.readline()) or []
                yield {record["row"]: Prediction(**record) for record in group}

    def recall(self, window: Sequence[Ticket]) -> dict[int, Prediction]:
        """What earlier runs recorded of this window's rows. Windows must come in order: the journal is read once."""
        known: dict[int, Prediction] = {}
        while self._next is not None and min(self._next) <= window[-1].row:
            known = self._next | known
            self._next = next(self._recorded, None)
        return known

    def record(self, predictions: Sequence[Prediction]) -> None:
        """Append predictions that were made together.

        Raises:
            OutputError: the file cannot be written, for example because the disk is full.
        """
        if not predictions:
            return
        try:
            self._write([prediction.to_record() for prediction in predictions])
            if time.monotonic() - self._synced > SYNC_EVERY_S:
                self.sync()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.num_rows += len(predictions)

    def _write(self, value: Any) -> None:
        text = json.dumps(value, allow_nan=False).encode()
        self._stream.write(b"%08x %s\n" % (zlib.crc32(text), text))
        self._stream.flush()

    def sync(self) -> None:
        """Survive a power cut from here on."""
        os.fsync(self._stream.fileno())
        self._synced = time.monotonic()

    def discard(self) -> None:
        """The run is complete: remove the journal."""
        self._stream.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream.closed:
            return
        with suppress(OSError):  # the error that is on its way says more
            self.sync()
        with suppress(OSError):
            self._stream.close()
        if not self.num_rows:  # nothing to go on with
            self.path.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written: {error.strerror or error}")


def _parse(line: bytes) -> Any:
    """The JSON of a whole line, else None."""
    if not line.endswith(b"\n"):
        return None
    digits, _, text = line[:-1].partition(b" ")
    try:
        return json.loads(text) if int(digits, 16) == zlib.crc32(text) else None
    except ValueError:
        return None
