"""Counts of many workers become those of one run. Every field of RunCounts is a number or a table of numbers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from slm_runtime.options import RunCounts


def take(counts: RunCounts) -> RunCounts:
    """What was counted so far; counting starts again at nothing."""
    taken = dataclasses.replace(counts)
    for name, value in vars(RunCounts()).items():
        setattr(counts, name, value)
    return taken


def add(total: RunCounts, counts: RunCounts) -> None:
    """Add `counts` to `total`."""
    for name, value in vars(counts).items():
        before = getattr(total, name)
        if isinstance(value, dict):
            for key, number in value.items():
                before[key] = before.get(key, 0) + number
        else:
            setattr(total, name, before + value)


def from_json(data: Mapping[str, Any]) -> RunCounts:
    """The counts that `dataclasses.asdict` and JSON have made of them: keys of tables other than labels are numbers."""
    numbers = {
        name: {int(key): number for key, number in value.items()}
        for name, value in data.items()
        if isinstance(value, dict) and name != "labels"
    }
    return RunCounts(**{**data, **numbers})
