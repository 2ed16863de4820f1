"""The keys and values of shared prompt prefixes, computed once each."""

from slm_runtime.labels import LabelTree
from slm_runtime.layout import label_branches, lay_out
from slm_runtime.planning import Batch
from slm_runtime.session import DecoderSession, Past, empty_past
from slm_runtime.tokenizer import TokenIds

_NO_LABELS = label_branches(LabelTree("first-token", 0, (), (), ()))


class PrefixCache:
    """Pasts of prefixes on one decoder. A past is handed out read-only and never changes."""

    def __init__(self, decoder: DecoderSession) -> None:
        self._decoder = decoder
        self._pasts: dict[TokenIds, Past] = {(): empty_past(decoder.spec)}

    def past(self, prefix_ids: TokenIds) -> Past:
        """The past after `prefix_ids`, from the first request on without running the model."""
        if prefix_ids not in self._pasts:
            chain = lay_out([0], [prefix_ids], _NO_LABELS)
            self._pasts[prefix_ids] = self._decoder.present(Batch((chain,)), self._pasts[()])
        return self._pasts[prefix_ids]
