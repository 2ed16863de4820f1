"""A task file with a calibration added, everything else in it as the user wrote it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from slm_runtime.calibration import Calibration
from slm_runtime.errors import InputError, TaskError
from slm_runtime.extra import require
from slm_runtime.task import Task, parse_task


def require_tomlkit() -> None:
    """Return when task files can be rewritten. Raises InputError, which names the extra."""
    require("tomlkit", extra="tune", purpose="slm-run tune")


def tuned_text(
    source: Path, task: Task, calibration: Calibration, *, threshold: float | None, comments: Sequence[str]
) -> str:
    """The text of the task file `source`, which holds `task`, with `calibration` and `comments` at its end.

    `threshold` replaces the file's, None keeps that.

    Raises:
        InputError: the file cannot be read, or changed since `task` was read from it.
    """
    import tomlkit

    try:
        document = tomlkit.parse(source.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot be read again ({error}); leave it alone while it is tuned") from error
    if threshold is not None:
        document["threshold"] = threshold
    table = tomlkit.table()
    for comment in comments:
        table.add(tomlkit.comment(_one_line(comment)))
    table.add("temperature", calibration.temperature)
    prior = tomlkit.table()
    for label, nats in zip(task.labels, calibration.prior, strict=True):
        prior.add(label, nats)
    table.add("prior", prior)
    document["calibration"] = table
    text = tomlkit.dumps(document)
    tuned = dataclasses.replace(
        task, calibration=calibration, threshold=task.threshold if threshold is None else threshold
    )
    try:
        unchanged = parse_task(text) == tuned
    except TaskError:
        unchanged = False
    if not unchanged:
        raise InputError(f"{source}: changed while it was tuned; run slm-run tune again")
    return text


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
