"""Text of unknown origin, fit to be looked at: nothing in it is invisible or reorders what stands around it."""

import json
import re

# Control characters, line separators, what has no width (joiners apart, which scripts and emoji need), what turns the
# direction of writing, halves of surrogate pairs, noncharacters, tags.
_UNSEEN = re.compile(
    "\r\n|[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\ud800-\udfff\ufdd0-\ufdef\uffa0\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)

_ARROWS = {"\n": "\u21b5 ", "\r\n": "\u21b5 ", "\t": "\u21e5"}


def visible(text: str) -> str:
    """The text with arrows for line breaks and tabs, `[U+202E]` for what else is unseen, U+FFFD for what is no text."""
    return _UNSEEN.sub(_shown, text)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of the text; an ellipsis says that there were more."""
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def plain(value: object) -> str:
    """A string as it is, nothing for null, any other value as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def _shown(match: re.Match[str]) -> str:
    if arrow := _ARROWS.get(match[0]):
        return arrow
    code = ord(match[0])
    if 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or code in (0xFFFE, 0xFFFF):
        return "\ufffd"
    return f"[U+{code:04X}]"
