"""The task: which labels, which prompt, which scoring rule. Read from TOML or made from a label list."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from slm_runtime.calibration import NEUTRAL, Calibration
from slm_runtime.errors import InputError, LabelError, TaskError
from slm_runtime.label_file import check_labels

Scoring = Literal["auto", "first-token", "sequence", "constrained"]
TEXT_FIELD = "{text}"
DEFAULT_USER = "Ticket: {text}\nCategory:"


def default_system(labels: Sequence[str]) -> str:
    """The system prompt when the task gives none: the labels are named and nothing else is allowed."""
    return f"You classify support tickets. Answer with exactly one of: {', '.join(labels)}."


@dataclass(frozen=True)
class Example:
    """One solved ticket, shown to the model as an earlier turn of the conversation."""

    text: str
    label: str


@dataclass(frozen=True)
class Task:
    """What is asked of the model for every ticket.

    `system` None means the default system prompt; an empty string means no system message at all, so that the chat
    template's own default applies. `assistant` is what the answer starts with. `threshold` is a probability: a ticket
    whose `score` is below it gets the label `abstain`, or none when that is None.

    Raises:
        TaskError: the user prompt does not hold `{text}` exactly once, an unknown rule, a threshold outside 0..1, an
            `abstain` that is no label, a prior that does not belong to the labels.
        LabelError: no labels, an empty one, or the same one twice.
    """

    labels: tuple[str, ...]
    system: str | None = None
    user: str = DEFAULT_USER
    assistant: str = ""
    scoring: Scoring = "auto"
    threshold: float | None = None
    examples: tuple[Example, ...] = ()
    descriptions: tuple[str, ...] = ()
    abstain: str | None = None
    calibration: Calibration = NEUTRAL

    def __post_init__(self) -> None:
        numbered = ((f"label {number}", label) for number, label in enumerate(self.labels, start=1))
        if tuple(check_labels(numbered, "labels")) != self.labels:
            raise LabelError(f"a label starts or ends with white space: {list(self.labels)}; trim it")
        if self.user.count(TEXT_FIELD) != 1:
            raise TaskError(
                f"user prompt holds {TEXT_FIELD} {self.user.count(TEXT_FIELD)} times, expected exactly once"
            )
        if self.scoring not in get_args(Scoring):
            raise TaskError(f"scoring {self.scoring!r} is unknown, expected one of {', '.join(get_args(Scoring))}")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise TaskError(f"threshold {self.threshold} is not a probability, expected 0 to 1")
        if unknown := sorted({example.label for example in self.examples} - set(self.labels)):
            raise TaskError(f"an example has label {unknown[0]!r}, which is not in the label list")
        if self.abstain is not None and check_labels([("abstain", self.abstain)], "task") != [self.abstain]:
            raise TaskError(f"abstain is {self.abstain!r}, which starts or ends with white space; trim it")
        if len(self.calibration.prior) not in (0, len(self.labels)):
            raise TaskError(
                f"calibration: {len(self.calibration.prior)} priors for {len(self.labels)} labels, expected one each"
            )

    @property
    def system_prompt(self) -> str:
        """The system message, label descriptions last; empty when there is none."""
        if self.system == "":
            return ""
        lines = [f"{name}: {text}" for name, text in zip(self.labels, self.descriptions, strict=False) if text]
        return "\n".join([self.system or default_system(self.labels), *lines])

    @property
    def digest(self) -> str:
        """sha256 over everything that decides an answer."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def read_task(path: Path) -> Task:
    """The task in a TOML file: `labels` or `[[label]]`, and optionally the other fields of `Task`.

    Raises:
        InputError: the file cannot be read.
        TaskError: not TOML, an unknown key, or a value of the wrong type.
        LabelError: as for `Task`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot read the task file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not valid TOML ({error})") from error
    try:
        return parse_task(text)
    except TaskError as error:
        raise type(error)(f"{path}: {error}") from error


def parse_task(text: str) -> Task:
    """The task in the text of a TOML file. Raises TaskError and LabelError as `read_task` does."""
    try:
        return task_of_table(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"not valid TOML ({error})") from error


def task_of_table(data: dict[str, Any]) -> Task:
    """The task in a parsed TOML table. Raises TaskError and LabelError as `read_task` does."""
    known = {"labels", "label", "system", "user", "assistant", "scoring", "threshold", "example"}
    known |= {"abstain", "calibration"}
    if unknown := sorted(set(data) - known):
        raise TaskError(f"unknown key {unknown[0]!r}, expected {', '.join(sorted(known))}")
    if ("labels" in data) == ("label" in data):
        raise TaskError("expected either labels = [...] or [[label]] tables")
    tables = _tables(data, "label", {"name": str}, {"description": str})
    names = _typed(data, "labels", list, []) if "labels" in data else [table["name"] for table in tables]
    if not all(isinstance(name, str) for name in names):
        raise TaskError("labels holds something that is not a string")
    labels = tuple(name.strip() for name in cast("list[str]", names))
    return Task(
        labels=labels,
        system=_typed(data, "system", str, None),
        user=_typed(data, "user", str, DEFAULT_USER),
        assistant=_typed(data, "assistant", str, ""),
        scoring=_typed(data, "scoring", str, "auto"),
        threshold=_number(data["threshold"], "threshold") if "threshold" in data else None,
        examples=tuple(Example(**table) for table in _tables(data, "example", {"text": str, "label": str}, {})),
        descriptions=tuple(table.get("description", "") for table in tables),
        abstain=_typed(data, "abstain", str, None),
        calibration=_calibration(_typed(data, "calibration", dict, {}), labels),
    )


def _calibration(table: dict[str, Any], labels: Sequence[str]) -> Calibration:
    if unknown := sorted(set(table) - {"temperature", "prior"}):
        raise TaskError(f"calibration: unknown key {unknown[0]!r}, expected temperature, prior")
    prior = _typed(table, "prior", dict, {})
    if strange := [name for name in prior if name not in labels]:
        raise TaskError(f"calibration: a prior for {strange[0]!r}, which is not in the label list")
    nats = {name: _number(value, f"calibration: the prior of {name!r}") for name, value in prior.items()}
    return Calibration(
        temperature=_number(table.get("temperature", 1.0), "calibration: temperature"),
        prior=tuple(nats.get(label, 0.0) for label in labels) if nats else (),
    )


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TaskError(f"{what} is {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError as error:
        raise TaskError(f"{what} has {len(str(value))} digits, expected a number that a float can hold") from error


def _typed(data: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    value = data.get(key, default)
    if key in data and not isinstance(value, kind):
        raise TaskError(f"{key} is a {type(value).__name__}, expected a {kind.__name__}")
    return value


def _tables(
    data: dict[str, Any], key: str, required: dict[str, type], optional: dict[str, type]
) -> list[dict[str, Any]]:
    tables = _typed(data, key, list, [])
    for number, table in enumerate(tables, start=1):
        where = f"[[{key}]] number {number}"
        if not isinstance(table, dict):
            raise TaskError(f"{where} is not a table")
        if odd := sorted(set(table) - set(required) - set(optional)) or sorted(set(required) - set(table)):
            raise TaskError(f"{where}: {odd[0]!r} is unknown or missing; expected {', '.join([*required, *optional])}")
        for name, value in table.items():
            if not isinstance(value, kind := (required | optional)[name]):
                raise TaskError(f"{where}: {name} is a {type(value).__name__}, expected a {kind.__name__}")
    return tables
