"""The third stage: labelled blocks, in order, become part files, each of them whole or not there."""

import io
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import IO, Protocol

from slm_runtime.errors import OutputError
from slm_runtime.options import RunCounts
from slm_runtime.ray_engine.blocks import FileEnd, LabelledBlock
from slm_runtime.ray_engine.counting import add
from slm_runtime.ray_engine.storage import Storage


class PartError(Exception):
    """A file whose part cannot be completed; says why."""


@dataclass(frozen=True)
class Part:
    """A part that has its name now."""

    counts: RunCounts
    num_low_mass: int
    end: FileEnd


class OnBlock(Protocol):
    """Told about every block that arrives. May raise."""

    def __call__(self, block: LabelledBlock) -> None: ...


def write_parts(
    blocks: Iterable[LabelledBlock], output: Storage, names: list[str], output_format: str, on_block: OnBlock
) -> Iterator[tuple[int, Part | PartError]]:
    """The number of each file, and its part or the reason why it has none. `names` are the parts' by file number.

    Blocks come file after file, in order, or not at all.

    Raises:
        OutputError: a part cannot be written.
        SlmError: no block can be labelled.
    """
    for file, of_file in groupby(blocks, key=lambda block: block.file):
        try:
            with output.whole_file(names[file]) as stream, _appending(stream, names[file], output_format) as append:
                part = _write(of_file, append, on_block)
            yield file, part
        except PartError as error:
            yield file, error


class _Append(Protocol):
    def __call__(self, content: bytes) -> None: ...


def _write(blocks: Iterable[LabelledBlock], append: _Append, on_block: OnBlock) -> Part:
    counts, num_low_mass = RunCounts(), 0
    for expected, block in enumerate(blocks):
        if block.fatal is not None:
            raise block.fatal
        on_block(block)
        if block.index != expected:
            break
        if problem := block.error or (block.end and block.end.error):
            raise PartError(problem)
        append(block.content)
        add(counts, block.counts)
        num_low_mass += block.num_low_mass
        if block.end is not None:
            return Part(counts, num_low_mass, block.end)
    raise PartError("some of its rows were lost: their worker died again and again")


def _appending(stream: IO[bytes], name: str, output_format: str) -> AbstractContextManager[_Append]:
    if output_format == "parquet":
        return _appending_parquet(stream, name)
    return nullcontext(lambda content: _append_bytes(stream, name, content))


def _append_bytes(stream: IO[bytes], name: str, content: bytes) -> None:
    try:
        stream.write(content)
    except OSError as error:
        raise OutputError(f"{name}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _appending_parquet(stream: IO[bytes], name: str) -> Iterator[_Append]:
    import pyarrow.parquet as pq

    from slm_runtime.writers_parquet import parquet_writing

    with parquet_writing(nullcontext(stream), name) as writer:

        def append(content: bytes) -> None:
            rows = pq.read_table(io.BytesIO(content))
            if rows.num_rows:
                writer.append(rows)

        yield append
