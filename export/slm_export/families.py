"""Which checkpoints the decoder can express: the facts are read from the config, and what is unknown is refused."""

from dataclasses import dataclass
from typing import Any

from slm_runtime.errors import SourceError

FAMILIES = ("qwen2", "qwen3", "llama")
# Rotary variants whose inverse frequencies are constants of the model; `dynamic` and `longrope` depend on the input.
STATIC_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Architecture:
    """The sizes of one decoder. Letters as in `slm_runtime.manifest`."""

    family: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    tied_head: bool


def read_architecture(config: Any) -> Architecture:
    """The architecture that a transformers config describes.

    Raises:
        SourceError: another family, or a feature that the exported graph does not compute.
    """
    family = config.model_type
    if family not in FAMILIES:
        raise SourceError(f"model type {family!r} is not supported; supported families: {', '.join(FAMILIES)}")
    if config.hidden_act != "silu":
        raise SourceError(f"{family} with activation {config.hidden_act!r} is not supported, expected 'silu'")
    if sliding := sorted(set(getattr(config, "layer_types", None) or []) - {"full_attention"}):
        raise SourceError(f"{family} with {', '.join(sliding)} layers is not supported, expected full attention only")
    rope = config.rope_scaling or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in STATIC_ROPE:
        raise SourceError(f"rotary scaling {rope_type!r} is not supported, expected one of {', '.join(STATIC_ROPE)}")
    num_heads = config.num_attention_heads
    return Architecture(
        family=family,
        num_layers=config.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=config.num_key_value_heads or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        tied_head=bool(config.tie_word_embeddings),
    )
