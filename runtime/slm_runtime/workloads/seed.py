"""The seed workload: 600 synthetic tickets, many of them the beginning of another.

Its recipe is known in outline only: three base sentences, a filler, log-normal word counts from 12 to 400, seed 0.
Sentences, filler, and the two parameters of the distribution are ours, chosen so that the published sizes come out for
the default prompt on the Qwen2.5 tokenizer:

| fact | published | here |
|---|---|---|
| distinct texts in 600 | 335 | 335 |
| shared prefix, tokens | 27 | 27 |
| prompt tokens of all tickets | 73,555 | 73,237 |
| distinct tokens of the prefix tree, the shared prefix not counted | 3,910 | 3,910 |
"""

import random

SEED_LABELS = ("billing", "technical", "account")
SEED_TICKETS = 600
MIN_WORDS, MAX_WORDS = 12, 400
# Of the words' logarithm. With these the longest ticket of each kind has MAX_WORDS words.
MEAN, DEVIATION = 3.98, 0.99

_BASES = (
    "I was charged twice for my plan this month and I would like the second payment sent back to me.",
    "The app stops with an error as soon as I open the report page, and a restart does not help.",
    "I cannot change the email address of my profile because the page does not accept my password.",
)
_FILLER = (
    "I have tried this on my own more than once and it is the same each time so please look into it and let me know "
    "what I should do next because my team needs this to work again soon."
)


def seed_tickets(count: int = SEED_TICKETS) -> list[str]:
    """The first `count` tickets, the same on every machine: a base sentence and filler, cut to the ticket's length."""
    generator = random.Random(0)  # noqa: S311 - a workload, not a secret
    return [_ticket(_BASES[row % len(_BASES)], _num_words(generator)) for row in range(count)]


def _num_words(generator: random.Random) -> int:
    return min(MAX_WORDS, max(MIN_WORDS, int(generator.lognormvariate(MEAN, DEVIATION))))


def _ticket(base: str, num_words: int) -> str:
    words = base.split()
    while len(words) < num_words:
        words += _FILLER.split()
    return " ".join(words[:num_words])
