"""The body of POST /v1/classify to tickets."""

from typing import Any

from slm_runtime.records import Ticket, TicketId
from slm_runtime.serve.problems import RequestError, bad_field
from slm_runtime.ticket_text import replace_lone_surrogates


def classify_tickets(value: Any, max_texts: int) -> list[Ticket]:
    """The tickets of `{"text": ..., "id": ...}`, or of `{"texts": [...]}` with strings and such objects; an id may be
    left out.

    Raises:
        RequestError: 422 for another shape, 413 for too many texts.
    """
    if not isinstance(value, dict):
        raise bad_field('expected an object with "text" or "texts"')
    if "texts" not in value:
        return [_ticket(0, value)]
    if unknown := sorted(set(value) - {"texts"}):
        raise bad_field(f'unknown key {unknown[0][:40]!r} beside "texts"')
    texts = value["texts"]
    if not isinstance(texts, list) or not texts:
        raise bad_field('"texts" must be an array of at least one text')
    if len(texts) > max_texts:
        raise RequestError(413, "too_large", f"{len(texts)} texts, expected at most {max_texts}; send several requests")
    return [_ticket(row, text if isinstance(text, dict) else {"text": text}) for row, text in enumerate(texts)]


def _ticket(row: int, value: dict[str, Any]) -> Ticket:
    if unknown := sorted(set(value) - {"text", "id"}):
        raise bad_field(f"text {row}: unknown key {unknown[0][:40]!r}, expected text and id")
    text = value.get("text")
    if not isinstance(text, str):
        raise bad_field(f"text {row} is {'not a string' if 'text' in value else 'missing'}")
    return Ticket(row, _ticket_id(row, value.get("id")), text)


def _ticket_id(row: int, value: Any) -> TicketId:
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if value is None or isinstance(value, (int, float)):
        return value
    raise bad_field(f"the id of text {row} is neither a string nor a number, a boolean or null")
