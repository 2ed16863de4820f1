"""What a call of the decoder costs, in units of one token's matrix products. The planner compares plans with it."""

from dataclasses import dataclass
from typing import Self

from slm_runtime.manifest import GraphSpec

# Fitted on a 2-core AVX-512 machine with the 0.5B model, see runtime/DESIGN.md: attention computes little more than
# half of all pairs at half the speed of the weight products, and a call costs as much as 20 more tokens.
ATTENTION_OVERHEAD = 1.0
CALL_TOKENS = 20.0
# Integer products take half the time of float ones; attention stays in float, so it weighs twice as much.
INT8_SPEED = 2.0


@dataclass(frozen=True)
class CostModel:
    """`pair_tokens`: one token looking at one position, as a share of the work of one token."""

    pair_tokens: float
    call_tokens: float = CALL_TOKENS

    @classmethod
    def of_graph(cls, spec: GraphSpec, weight_bytes: int) -> Self:
        """The cost model of a decoder with `weight_bytes` of weights."""
        bytes_each, speed = (1, INT8_SPEED) if spec.precision == "int8" else (4, 1.0)
        per_pair = 2 * spec.num_layers * spec.num_heads * spec.head_dim
        return cls(speed * ATTENTION_OVERHEAD * per_pair * bytes_each / weight_bytes, speed * CALL_TOKENS)

    def call(self, rows: int, length: int, past_len: int) -> float:
        """Cost of one call with `rows` rows of `length` tokens, padding included, after `past_len` cached ones."""
        tokens = rows * length
        return self.call_tokens + tokens + self.pair_tokens * tokens * (past_len + length)
