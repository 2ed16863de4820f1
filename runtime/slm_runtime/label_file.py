"""The labels a user gives, from a file or a flag: trimmed, in order, none twice."""

import codecs
import csv
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from slm_runtime.errors import LabelError
from slm_runtime.ticket_text import LONE_SURROGATE, is_blank


def read_labels(path: str | Path) -> list[str]:
    """The labels of a UTF-8 file, one per line, trimmed, in order; blank lines are ignored.

    Raises: LabelError if the file cannot be read, holds no label or one label twice.
    """
    try:
        data = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
        text = data.decode("utf-8")
    except OSError as error:
        raise LabelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise LabelError(
            f"{path}: line {line}: byte 0x{data[error.start]:02X} is not UTF-8; save it as UTF-8"
        ) from error
    lines = re.split(r"\r\n?|\n", text)
    return check_labels(
        [(f"line {number}", line) for number, line in enumerate(lines, 1) if not is_blank(line)], str(path)
    )


def parse_labels(text: str) -> list[str]:
    """The labels of a comma-separated list, trimmed, in order; a label in double quotes may hold a comma.

    Raises: LabelError if a label is empty, there twice, or wrongly quoted, or if there is none.
    """
    try:
        labels = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error as error:
        raise LabelError(f'labels {text!r}: {error}; write a label with a comma or a quote as "a, ""b"""') from error
    return check_labels([(f"label {number}", label) for number, label in enumerate(labels, 1)], "--labels")


def check_labels(named: Iterable[tuple[str, str]], source: str) -> list[str]:
    """The trimmed labels of (place, label) pairs.

    Raises: LabelError naming the places of an empty, a doubled or an undecodable label, or if there is none.
    """
    places: dict[str, str] = {}
    for place, untrimmed in named:
        label = untrimmed.strip()
        if is_blank(label):
            raise LabelError(f"{source}: {place} is empty; remove it")
        if LONE_SURROGATE.search(label):
            raise LabelError(f"{source}: {place} ({label!r}) is not valid UTF-8; write it in UTF-8")
        if label in places:
            raise LabelError(f"{source}: the label {label!r} is there twice, {places[label]} and {place}; remove one")
        places[label] = place
    if not places:
        raise LabelError(f"{source}: no label, expected at least one")
    return list(places)


def case_twins(labels: Iterable[str]) -> list[list[str]]:
    """The groups of labels that differ in case only; they share the vote and deserve a warning."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for label in labels:
        groups[label.casefold()].append(label)
    return [group for group in groups.values() if len(group) > 1]
