"""One look at a whole input before any inference: how much there is, and what is wrong with it."""

from dataclasses import dataclass
from pathlib import Path

from slm_runtime.integrity import sha256_of
from slm_runtime.readers import TicketReader


@dataclass(frozen=True)
class Survey:
    """`num_chars` of text in `num_rows` rows; `sha256` is that of the file."""

    num_rows: int
    num_chars: int
    sha256: str
    size_bytes: int


def survey_file(path: Path, reader: TicketReader, limit: int | None) -> Survey:
    """The survey of a regular file, through a reader of its own; at most `limit` rows are counted.

    Raises:
        InputError: the input is damaged beyond one row.
    """
    num_rows = num_chars = 0
    with reader:
        for ticket in reader:
            if num_rows == limit:
                break
            num_rows += 1
            num_chars += len(ticket.text or "")
    return Survey(num_rows, num_chars, sha256_of(path), path.stat().st_size)
