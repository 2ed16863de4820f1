"""The contract of the decoder graphs with fixed shapes, made for CoreML. Standard library only.

Axis letters: S new tokens, P past tokens, T = P + S, D hidden size, Hkv key-value heads, Dh head dim.
"""

from dataclasses import dataclass
from typing import Literal

StaticPrecision = Literal["fp32", "fp16"]


@dataclass(frozen=True)
class StaticGraphSpec:
    """One prefill step for one row of exactly S tokens after exactly P past ones; every tensor is of `precision`.

    | name | shape |
    |---|---|
    | in `hidden` | [S, D], embedded tokens |
    | in `cos`, `sin` | [S, Dh], both halves of a head; `sin` with its first half negated |
    | in `mask` | [S, T], 0 or `masked` |
    | in `past_key_{i}`, `past_value_{i}` | [Hkv, P, Dh], keys after rotation |
    | out `hidden_out` | [S, D], before the final norm |
    | out `present_key_{i}`, `present_value_{i}` | [Hkv, S, Dh], new tokens only |

    The row is a token tree as in the dynamic graph, so it may hold several tickets. Columns that hold no past are
    masked in every row, all of them where there is no prefix; padding tokens come last and see the past and themselves.

    Angles are position times `inverse_frequencies` [Dh / 2], cosines and sines of them times `rope_scaling`. The final
    norm is left to the caller: x / sqrt(mean(x * x) + `norm_epsilon`) times `final_norm` [D]. Both vectors are float32
    `.npy` files.
    """

    file: str
    precision: StaticPrecision
    num_tokens: int
    past_len: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    norm_epsilon: float
    rope_scaling: float
    cache_key: str

    hidden = "hidden"
    cos = "cos"
    sin = "sin"
    mask = "mask"
    hidden_out = "hidden_out"
    final_norm = "final_norm.npy"
    inverse_frequencies = "inverse_frequencies.npy"
    # The graph's metadata property that holds `cache_key`; onnxruntime names compiled models after it.
    cache_key_property = "COREML_CACHE_KEY"
    # Far below any score and still a number in float16.
    masked = -3e4
    # Older builds for macOS have no float16 in their CoreML provider.
    min_onnxruntime = "1.24.1"

    @property
    def total_len(self) -> int:
        """T"""
        return self.past_len + self.num_tokens

    @property
    def files(self) -> tuple[str, str, str]:
        """What must lie in the bundle for this graph."""
        return self.file, self.final_norm, self.inverse_frequencies

    def past_names(self) -> list[str]:
        """Layer by layer, key before value: the order of `GraphSpec.past_names`."""
        return [f"past_{kind}_{layer}" for layer in range(self.num_layers) for kind in ("key", "value")]

    def present_names(self) -> list[str]:
        """In the order of `past_names`."""
        return [f"present_{kind}_{layer}" for layer in range(self.num_layers) for kind in ("key", "value")]

    def input_names(self) -> list[str]:
        return [self.hidden, self.cos, self.sin, self.mask, *self.past_names()]

    def output_names(self) -> list[str]:
        return [self.hidden_out, *self.present_names()]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every input and output, in the order in which the graph lists them."""
        past = (self.num_kv_heads, self.past_len, self.head_dim)
        present = (self.num_kv_heads, self.num_tokens, self.head_dim)
        states, angles = (self.num_tokens, self.hidden_size), (self.num_tokens, self.head_dim)
        return {
            self.hidden: states,
            self.cos: angles,
            self.sin: angles,
            self.mask: (self.num_tokens, self.total_len),
            **dict.fromkeys(self.past_names(), past),
            self.hidden_out: states,
            **dict.fromkeys(self.present_names(), present),
        }
