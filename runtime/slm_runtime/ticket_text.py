"""What a ticket's text may hold: the two rules that readers, labels and writers share."""

import re

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_INVISIBLE = re.compile("[\\s\u200b\u200c\u200d\u2060\ufeff]*")


def is_blank(text: str) -> bool:
    """True when nothing is left after white space and zero-width characters."""
    return _INVISIBLE.fullmatch(text) is not None


def replace_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which neither a tokenizer nor UTF-8 accepts."""
    return LONE_SURROGATE.sub("\ufffd", text)
