"""The keys and values of shared beginnings of prompts, computed once each."""

import numpy as np

from slm_runtime.decoder import Decoder
from slm_runtime.layout import shared_length
from slm_runtime.model_input import chain_input
from slm_runtime.opening import Opening
from slm_runtime.session import Past, empty_past
from slm_runtime.tokenizer import TokenIds

MAX_CHUNK_TOKENS = 512
KEPT_PASTS = 4


class PrefixCache:
    """Pasts of token sequences on one decoder. A past is handed out read-only and never changes.

    Tokens go through the model at most `longest_chunk` at a time. The `KEPT_PASTS` used last are kept; `num_computed`
    counts the tokens that went through the model for them. Token sequences that begin with the tokens of `opening`
    begin with its past.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        max_pairs: int,
        longest_chunk: int = MAX_CHUNK_TOKENS,
        opening: Opening | None = None,
    ) -> None:
        self._decoder = decoder
        self._max_pairs = max_pairs
        self._longest_chunk = min(longest_chunk, MAX_CHUNK_TOKENS)
        self._opening = Opening((), empty_past(decoder.spec)) if opening is None else opening
        self._empty = empty_past(decoder.spec)
        self._pasts: dict[TokenIds, Past] = {}
        self.num_computed = 0

    @property
    def opening_ids(self) -> TokenIds:
        """The tokens whose past was there from the start."""
        return self._opening.token_ids

    def past(self, token_ids: TokenIds) -> Past:
        """The past after `token_ids`, continued from the longest known beginning, a chunk at a time."""
        if token_ids in self._pasts:
            self._pasts[token_ids] = self._pasts.pop(token_ids)  # used last
            return self._pasts[token_ids]
        ready = {(): self._empty, self.opening_ids: self._opening.past, **self._pasts}
        known = max((ids for ids in ready if shared_length(ids, token_ids) == len(ids)), key=len)
        past = ready[known]
        while past.num_tokens < len(token_ids):
            start = past.num_tokens
            chunk = token_ids[start : start + self._chunk_tokens(start)]
            _, past = self._decoder.with_present(chain_input(np.array(chunk, np.int64), start), past)
            self.num_computed += len(chunk)
        if token_ids:
            self._pasts[token_ids] = past
            while len(self._pasts) > KEPT_PASTS:
                del self._pasts[next(iter(self._pasts))]
        return past

    def _chunk_tokens(self, past_len: int) -> int:
        """As many tokens as the limit on attention scores allows after a past of that length."""
        return max(1, min(self._longest_chunk, self._max_pairs // (past_len + MAX_CHUNK_TOKENS)))
