"""How often a graph failed on this machine: after the last strike it is left alone until the versions change."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from slm_runtime.coreml.cache import graph_key, versions_folder
from slm_runtime.coreml.versions import Versions
from slm_runtime.errors import OutputError
from slm_runtime.static_graph import StaticGraphSpec
from slm_runtime.writers import write_file

MAX_STRIKES = 2
FORMAT = 1
DIED_OPENING = "crash: a process ended while it opened the graph"


@dataclass(frozen=True)
class Strikes:
    """The strikes against one graph: reasons recorded in a file, and marks of processes that died opening it."""

    path: Path
    versions: Versions
    recorded: tuple[str, ...]
    marks: tuple[Path, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """One for every strike."""
        return self.recorded + (DIED_OPENING,) * len(self.marks)

    @property
    def are_out(self) -> bool:
        """True when the graph is not to be tried again."""
        return len(self.reasons) >= MAX_STRIKES


def read_strikes(versions: Versions, spec: StaticGraphSpec) -> Strikes:
    """The strikes against a graph; none where they cannot be read or belong to other versions."""
    folder = versions_folder(versions)
    path = folder / f"strikes-{graph_key(spec)}.json"
    marks = tuple(mark for mark in folder.glob(f"opening-{graph_key(spec)}-*") if not _is_running(mark))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        reasons = tuple(map(str, data["reasons"]))
        valid = data["format"] == FORMAT and data["versions"] == asdict(versions)
    except (OSError, ValueError, KeyError, TypeError):
        return Strikes(path, versions, (), marks)
    return Strikes(path, versions, reasons if valid else (), marks)


def add_strike(strikes: Strikes, reason: str) -> None:
    """Remember one more. Where the cache cannot be written nothing is remembered, and the graph is tried again."""
    content = {"format": FORMAT, "versions": asdict(strikes.versions), "reasons": [*strikes.recorded, reason]}
    with suppress(OSError, OutputError):
        strikes.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(strikes.path, (json.dumps(content, indent=2) + "\n").encode())


def clear_strikes(strikes: Strikes) -> None:
    """Forget them all."""
    for path in (strikes.path, *strikes.marks):
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def opening(versions: Versions, spec: StaticGraphSpec) -> Iterator[None]:
    """While a graph is opened here: should that end the process, which no handler can prevent, a mark stays behind."""
    strikes = read_strikes(versions, spec)
    mark = strikes.path.with_name(f"opening-{graph_key(spec)}-{os.getpid()}")
    with suppress(OSError):
        mark.touch()
    try:
        yield
        clear_strikes(strikes)
    except Exception as error:
        add_strike(strikes, str(error))
        raise
    finally:
        with suppress(OSError):
            mark.unlink(missing_ok=True)


def _is_running(mark: Path) -> bool:
    """Whether the process that left the mark is still there."""
    try:
        os.kill(int(mark.name.rpartition("-")[2]), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):  # someone else's process, or someone else's file
        return True
    return True
