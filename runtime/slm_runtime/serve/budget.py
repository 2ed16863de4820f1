"""What a batch may hold, estimated from the texts alone."""

from bisect import bisect_left

# Tokens around every ticket that no other ticket shares: the end of the message, the answer's header.
FRAME_TOKENS = 10


class BatchBudget:
    """Counts the tokens of texts that are scored together. A beginning that another text has as well, like a whole
    text that is there already, is computed once and counted once. At least one text always fits.
    """

    def __init__(self, max_tokens: int, max_texts: int, longest_text_tokens: int) -> None:
        self._left = float(max_tokens)
        self._max_texts = max_texts
        self._longest = longest_text_tokens
        self._num_texts = 0
        self._texts: list[str] = []

    def admits(self, text: str) -> bool:
        """Whether `text` fits; if so it is counted."""
        place = bisect_left(self._texts, text)
        known = place < len(self._texts) and self._texts[place] == text
        price = 0.0 if known else self._price(text, place)
        if self._num_texts and (price > self._left or self._num_texts >= self._max_texts):
            return False
        self._num_texts += 1
        self._left -= price
        if not known:
            self._texts.insert(place, text)
        return True

    def _price(self, text: str, place: int) -> float:
        neighbours = self._texts[max(place - 1, 0) : place + 1]
        shared = max((shared_chars(text, other) for other in neighbours), default=0)
        return FRAME_TOKENS + min(estimated_tokens(text[shared:]), self._longest)


def estimated_tokens(text: str) -> float:
    """About the tokens of a text: four ASCII characters make one, and hardly any other character makes two."""
    extra_bytes = len(text.encode("utf-8", "replace")) - len(text)
    return (len(text) + 2 * extra_bytes) / 4


def shared_chars(first: str, second: str) -> int:
    """How many characters two texts have in common from the start."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
