"""Ticket texts to measure with: the built-in seed workload, or a file of the user's."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from slm_runtime.errors import InputError
from slm_runtime.readers import open_tickets
from slm_runtime.workloads.seed import SEED_LABELS, SEED_TICKETS, seed_tickets

__all__ = ["SEED", "SEED_LABELS", "Workload", "load_workload", "seed_tickets"]

SEED = "seed"


@dataclass(frozen=True)
class Workload:
    """`texts` in input order. `num_skipped` rows in between could not be used, for example empty ones."""

    name: str
    texts: tuple[str, ...]
    num_skipped: int = 0


def load_workload(source: str, *, limit: int | None = None, text_column: str = "text") -> Workload:
    """The workload called `seed`, or that of a file which `readers.open_tickets` can read.

    `limit` is the number of rows read; a row that is skipped counts.

    Raises: InputError if the file cannot be read, or no usable row is in it.
    """
    if limit is not None and limit < 1:
        raise InputError(f"a limit of {limit} tickets, expected at least 1")
    if source == SEED:
        return Workload(SEED, tuple(seed_tickets()[: limit or SEED_TICKETS]))
    with open_tickets(source, text_column=text_column) as tickets:
        rows = [ticket.text for ticket in islice(tickets, limit)]
    texts = tuple(text for text in rows if text is not None)
    if not texts:
        raise InputError(f"{source}: none of its {len(rows)} rows holds a usable text; give another file")
    return Workload(Path(source).name, texts, len(rows) - len(texts))
