"""JSON lines to tickets: one object per line, and a line that is none fails alone."""

import json
import math
from collections.abc import Iterator, Sequence

from slm_runtime.errors import RecordError
from slm_runtime.lines import PhysicalLines
from slm_runtime.records import Ticket, TicketId
from slm_runtime.ticket_text import is_blank, replace_lone_surrogates

# Objects become tuples of pairs, so that doubled keys stay visible; arrays are lists.
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)
_JSON_TYPES = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "an array",
    tuple: "an object",
    type(None): "null",
}


def jsonl_tickets(
    lines: PhysicalLines, *, text_column: str, id_column: str | None, keep_columns: Sequence[str] = ()
) -> Iterator[Ticket]:
    """One ticket per line that is not blank, in order; blank lines are counted in `lines.num_blank`.

    The id is repeated as it is (string, finite number, boolean or null). A given `id_column` must be in every
    object; without one, `id` is used where it exists. `Ticket.fields` holds the values of the keys in `keep_columns`.
    """
    row = 0
    for line in lines:
        if line.strip(" \t\r\n"):
            yield _ticket(row, line, lines, text_column, id_column, keep_columns)
            row += 1
        else:
            lines.num_blank += 1
        lines.start_record()


def _ticket(
    row: int, line: str, lines: PhysicalLines, text_column: str, id_column: str | None, keep_columns: Sequence[str]
) -> Ticket:
    ticket_id: TicketId = None
    text: str | None = None
    fields: dict[str, str] = {}
    error = lines.bad_byte
    try:
        pairs = _parse_object(line)
        fields = {key: _field(key, pairs) for key in keep_columns}
        ticket_id = _ticket_id(pairs, id_column)
        text = _text(pairs, text_column)
    except RecordError as problem:
        error = error or f"line {lines.number}: {problem}"
    if error or text is None:
        return Ticket(row, ticket_id, None, error, fields)
    clean = replace_lone_surrogates(text)
    lines.num_replaced += clean != text
    return Ticket(row, ticket_id, clean, None, fields)


def _parse_object(line: str) -> tuple[tuple[str, object], ...]:
    try:
        value = _DECODER.decode(line.rstrip("\r\n"))
    except json.JSONDecodeError as error:
        raise RecordError(f"not valid JSON: {error.msg} at character {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not usable JSON: {error}") from error
    if not isinstance(value, tuple):
        raise RecordError(f"{_JSON_TYPES[type(value)]}, expected a JSON object")
    return value


def _ticket_id(pairs: tuple[tuple[str, object], ...], id_column: str | None) -> TicketId:
    values = [value for key, value in pairs if key == (id_column or "id")]
    if len(values) > 1 or (id_column and not values):
        raise RecordError(f"the key {id_column or 'id'!r} is there {len(values)} times, expected once")
    value = values[0] if values else None
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"the id {value} is not a finite number")
    if value is None or isinstance(value, (int, float)):
        return value
    raise RecordError(f"the id is {_JSON_TYPES[type(value)]}, expected a string, a number, a boolean or null")


def _text(pairs: tuple[tuple[str, object], ...], text_column: str) -> str:
    values = [value for key, value in pairs if key == text_column]
    if len(values) > 1:
        raise RecordError(f"the key {text_column!r} is there {len(values)} times, expected once")
    if not values or values[0] is None:
        raise RecordError(f"missing text: {text_column!r} is {'null' if values else 'not in the object'}")
    text = values[0]
    if not isinstance(text, str):
        raise RecordError(f"{text_column!r} is {_JSON_TYPES[type(text)]}, expected a string")
    if is_blank(text):
        raise RecordError("empty text")
    return text


def _field(key: str, pairs: tuple[tuple[str, object], ...]) -> str:
    """The value of `key` as text; of a doubled key the last one, as JSON readers do."""
    value = dict(pairs).get(key)
    if value is None:
        return ""
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    try:
        return replace_lone_surrogates(json.dumps(_without_pairs(value), ensure_ascii=False))
    except RecursionError as error:
        raise RecordError(f"{key!r} is nested too deeply") from error


def _without_pairs(value: object) -> object:
    """Objects as dictionaries again."""
    if isinstance(value, tuple):
        return {key: _without_pairs(item) for key, item in value}
    return [_without_pairs(item) for item in value] if isinstance(value, list) else value
