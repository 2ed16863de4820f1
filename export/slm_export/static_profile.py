"""Which graphs of fixed shapes a bundle gets."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Self

from slm_runtime.errors import SourceError
from slm_runtime.static_graph import StaticPrecision

TOKEN_BUCKETS = (64, 128, 256, 512)
PAST_LENGTHS = (256,)
PAST_STEP = 64
# One protocol buffer may have 2 GiB; the rest is for nodes.
MAX_GRAPH_BYTES = 1_900_000_000
_WEIGHT_BYTES: dict[StaticPrecision, int] = {"fp32": 4, "fp16": 2}


@dataclass(frozen=True)
class StaticProfile:
    """One graph for every combination of precision, S and P."""

    precisions: tuple[StaticPrecision, ...] = ("fp32",)
    token_buckets: tuple[int, ...] = TOKEN_BUCKETS
    past_lens: tuple[int, ...] = PAST_LENGTHS

    @classmethod
    def of_options(cls, precisions: Iterable[str], token_buckets: Iterable[int], past_lens: Iterable[int]) -> Self:
        """The profile that the flags ask for: each value once, past lengths rounded up to multiples of `PAST_STEP`.

        Precisions that no static graph has are somebody else's.
        """
        own: list[StaticPrecision] = [name for name in ("fp32", "fp16") if name in set(precisions)]
        pasts = {-(-past // PAST_STEP) * PAST_STEP for past in past_lens}
        return cls(tuple(own) or ("fp32",), tuple(sorted(set(token_buckets))), tuple(sorted(pasts)))

    @property
    def sizes(self) -> list[tuple[StaticPrecision, int, int]]:
        """(precision, S, P) of every graph, in the order in which they are written."""
        return list(product(self.precisions, self.token_buckets, self.past_lens))

    def require_small_graphs(self, num_weights: int) -> None:
        """Return when every graph fits one file, weights included.

        Raises:
            SourceError: one would not.
        """
        for precision in self.precisions:
            if (size := num_weights * _WEIGHT_BYTES[precision]) > MAX_GRAPH_BYTES:
                raise SourceError(
                    f"a CoreML graph of this model has {size / 1e9:.1f} GB of weights in {precision}, one file "
                    f"holds {MAX_GRAPH_BYTES / 1e9:.1f} GB; use --precision fp16, a smaller model, or --profile cpu"
                )

    def num_bytes(self, num_weights: int) -> int:
        """Of all files together, for a decoder of so many weights."""
        return sum(num_weights * _WEIGHT_BYTES[precision] for precision, _, _ in self.sizes)
