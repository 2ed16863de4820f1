"""Folders of files, on this machine or behind a URL that pyarrow knows: one way to list, read and replace them."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import pyarrow as pa
from pyarrow import fs

from slm_runtime.errors import InputError, OutputError
from slm_runtime.readers import StoredFile
from slm_runtime.writers import whole_file

# A file for another machine is gathered here first, in memory up to so many bytes: one quick upload instead of hours.
SPOOL_BYTES = 64_000_000
_OBJECT_STORES = ("s3", "gcs", "abfs")  # folders there are a way of speaking
_QUERY = re.compile(r"\?(?=\w+=)")


@dataclass(frozen=True)
class FileInfo:
    """`name` is relative to the folder that was listed; `modified_ns` is None where the storage does not say."""

    name: str
    size_bytes: int
    modified_ns: int | None


@dataclass(frozen=True)
class Storage:
    """The folder `root` of a pyarrow filesystem; it can be sent to other machines, credentials included."""

    filesystem: Any
    root: str

    @classmethod
    def at(cls, address: str) -> Self:
        """The storage of a path or URL, which need not exist. Raises InputError for an unknown kind of URL."""
        if "://" not in address:
            return cls(fs.LocalFileSystem(), Path(address).resolve().as_posix())
        try:
            filesystem, root = fs.FileSystem.from_uri(address)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(
                f"{redacted(address)}: pyarrow {pa.__version__} cannot open such a URL ({error}); "
                "give a path, or file://, s3://, gs://, abfs:// or hdfs://"
            ) from error
        return cls(filesystem, root.rstrip("/") or "/")

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def parent(self) -> "Storage":
        """The folder that holds this one."""
        return Storage(self.filesystem, self.root.rpartition("/")[0] or "/")

    def path(self, name: str) -> str:
        """What the filesystem calls the file `name`."""
        return f"{self.root.rstrip('/')}/{name}"

    def kind(self) -> str:
        """`file`, `folder`, `nothing`, or `other` for a pipe, a device and the like."""
        names = {fs.FileType.File: "file", fs.FileType.Directory: "folder", fs.FileType.NotFound: "nothing"}
        with self._reported(InputError, "cannot be read"):
            return names.get(self.filesystem.get_file_info(self.root).type, "other")

    def files(self, *, recursive: bool = True) -> list[FileInfo]:
        """All files below the folder, sorted by name; none where there is no such folder."""
        selector = fs.FileSelector(self.root, allow_not_found=True, recursive=recursive)
        with self._reported(InputError, "cannot be listed"):
            found = self.filesystem.get_file_info(selector)
        start = len(self.root.rstrip("/")) + 1
        files = [
            FileInfo(info.path[start:], info.size or 0, info.mtime_ns)
            for info in found
            if info.type == fs.FileType.File
        ]
        return sorted(files, key=lambda file: file.name)

    def file(self, name: str) -> FileInfo:
        """One file that is there."""
        with self._reported(InputError, f"{name} cannot be read"):
            info = self.filesystem.get_file_info(self.path(name))
        return FileInfo(name, info.size or 0, info.mtime_ns)

    def ticket_file(self, name: str) -> Path | StoredFile:
        """The file for a reader."""
        if self.is_local:
            return Path(self.path(name))
        return StoredFile(self.path(name), lambda: self.filesystem.open_input_file(self.path(name)))

    def read(self, name: str) -> bytes | None:
        """The content of a file, None where there is none. Raises InputError when it cannot be read."""
        if Storage(self.filesystem, self.path(name)).kind() != "file":
            return None
        with (
            self._reported(InputError, f"{name} cannot be read"),
            self.filesystem.open_input_stream(self.path(name)) as stream,
        ):
            return bytes(stream.read())

    def whole_file(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """A stream whose bytes get their name when the context ends well; until then it keeps what it had.

        On this machine nobody else can write the same file meanwhile. Raises OutputError.
        """
        if not self.is_local:
            return self._uploaded(name)
        path = Path(self.path(name))
        with self._reported(OutputError, "cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
        return whole_file(path)

    def delete(self, name: str) -> None:
        """Remove a file that may be there. Raises OutputError."""
        with self._reported(OutputError, f"{name} cannot be removed"), suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(name))

    @contextmanager
    def _uploaded(self, name: str) -> Iterator[IO[bytes]]:
        folder, _, base = self.path(name).rpartition("/")
        temporary = f"{folder}/.{base}.part"
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
            yield spool
            spool.seek(0)
            with self._reported(OutputError, f"{name} cannot be written"):
                if self.filesystem.type_name not in _OBJECT_STORES:
                    self.filesystem.create_dir(folder, recursive=True)
                with self.filesystem.open_output_stream(temporary) as stream:
                    shutil.copyfileobj(spool, stream, 2**20)
                self.filesystem.move(temporary, self.path(name))

    @contextmanager
    def _reported(self, kind: type[InputError], what: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise kind(f"{self.root}: {what}: {reason}") from error


def split_query(address: str) -> tuple[str, str]:
    """A URL and its query with the question mark in front, which is no wildcard; the query is empty without one."""
    found = _QUERY.search(address) if "://" in address else None
    return (address[: found.start()], address[found.start() :]) if found else (address, "")


def redacted(address: str) -> str:
    """The address without user name, password and query, fit for messages and records."""
    return re.sub(r"://[^/@]*@", "://", split_query(address)[0])
