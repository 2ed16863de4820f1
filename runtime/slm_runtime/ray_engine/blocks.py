"""What travels between the machines: rows of one file, on their way to a worker and back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slm_runtime.defaults import DEFAULT_WINDOW
from slm_runtime.errors import SlmError
from slm_runtime.options import RunCounts
from slm_runtime.records import Ticket

# So many blocks per worker even out what they take; fewer rows than this would share and pad badly.
BLOCKS_PER_WORKER = 4
MIN_ROWS = 32
# More text than this in one block strains memory, however few its rows are.
MAX_CHARS = 64_000_000


@dataclass(frozen=True)
class FileEnd:
    """The last word on a file: what its reader counted, or why it could not read on."""

    num_blank: int = 0
    num_replaced: int = 0
    error: str | None = None


@dataclass(frozen=True)
class TicketBlock:
    """Some rows of input number `file`; `index` counts its blocks from 0. The last block has an `end` and no rows."""

    file: int
    index: int
    columns: tuple[str, ...]
    tickets: tuple[Ticket, ...]
    end: FileEnd | None = None


@dataclass(frozen=True)
class LabelledBlock:
    """`content` is the block's stretch of the part, in the format of the part.

    `error` says why the block could not be labelled, `fatal` why no block can be. `num_low_mass` rows have labels that
    hold little of the model's answer. `worker` names the process, `peak_memory_bytes` is the most that it has used.
    """

    file: int
    index: int
    content: bytes
    end: FileEnd | None
    counts: RunCounts
    num_low_mass: int
    worker: str
    peak_memory_bytes: int
    error: str | None = None
    fatal: SlmError | None = None


@dataclass(frozen=True)
class BlockSize:
    """A block is closed at `rows`, or at `chars` of text when it has MIN_ROWS."""

    rows: int
    chars: int

    @classmethod
    def of_job(cls, num_bytes: int, num_workers: int) -> "BlockSize":
        """A window of the local run, or less where some workers would have nothing to do."""
        return cls(DEFAULT_WINDOW, max(1, num_bytes // (BLOCKS_PER_WORKER * num_workers)))

    def cut(self, tickets: Iterable[Ticket]) -> Iterator[tuple[Ticket, ...]]:
        """The tickets in blocks, the last one shorter."""
        block: list[Ticket] = []
        num_chars = 0
        for ticket in tickets:
            block.append(ticket)
            num_chars += len(ticket.text or "") + sum(map(len, ticket.fields.values()))
            if self._is_full(len(block), num_chars):
                yield tuple(block)
                block, num_chars = [], 0
        if block:
            yield tuple(block)

    def _is_full(self, num_rows: int, num_chars: int) -> bool:
        return num_rows >= self.rows or num_chars >= MAX_CHARS or (num_rows >= MIN_ROWS and num_chars >= self.chars)
