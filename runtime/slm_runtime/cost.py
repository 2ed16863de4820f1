"""What a call of the decoder costs, in units of one token's matrix products. The planner compares plans with it."""

from dataclasses import dataclass
from typing import Self

from slm_runtime.manifest import GraphSpec

# Fitted on a 2-core AVX-512 machine with the 0.5B model (runtime/DESIGN.md): attention reaches less of the machine's
# arithmetic than the weight products do, a call has a fixed price, and few tokens cost as much as reading all weights.
ATTENTION_OVERHEAD = 2.2
CALL_TOKENS = 6.0
WEIGHT_READ_TOKENS = 48.0


@dataclass(frozen=True)
class CostModel:
    """`pair_tokens`: one token looking at one position, as a share of the work of one token."""

    pair_tokens: float
    call_tokens: float = CALL_TOKENS
    weight_read_tokens: float = WEIGHT_READ_TOKENS

    @classmethod
    def of_graph(cls, spec: GraphSpec, weight_bytes: int) -> Self:
        """The cost model of a float32 decoder with `weight_bytes` of weights."""
        multiply_adds = weight_bytes / 4
        per_pair = 2 * spec.num_layers * spec.num_heads * spec.head_dim
        return cls(ATTENTION_OVERHEAD * per_pair / multiply_adds)

    def call(self, rows: int, length: int, past_len: int) -> float:
        """Cost of one call with `rows` rows of `length` tokens, padding included, after `past_len` cached ones."""
        tokens = rows * length
        products = max(tokens, self.weight_read_tokens)
        return self.call_tokens + products + self.pair_tokens * tokens * (past_len + length)
