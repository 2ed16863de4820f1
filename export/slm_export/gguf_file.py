"""The header of a GGUF file, and the refusal of what transformers would silently leave out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm_runtime.errors import SourceError

ARCHITECTURES = ("qwen2", "llama")
ANOTHER_SOURCE = "Export the original checkpoint instead: give its hub id or its folder."


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key, the names of the tensors, and how many numbers they hold in all."""

    path: Path
    metadata: dict[str, Any]
    tensor_names: frozenset[str]
    num_weights: int

    @property
    def architecture(self) -> str:
        """llama.cpp's name for the architecture; it is the prefix of the architecture's own keys."""
        return str(self.required("general.architecture"))

    def required(self, key: str) -> Any:
        """The value of `key`. Raises: SourceError naming the key."""
        if key not in self.metadata:
            raise SourceError(
                f"{self.path}: metadata {key} is missing, and a guess would give wrong answers. "
                "Convert the model again with a current llama.cpp, or export the original checkpoint."
            )
        return self.metadata[key]

    def token(self, key: str) -> str | None:
        """The text of the token whose id is at `tokenizer.ggml.{key}`, or None."""
        token_id = self.metadata.get(f"tokenizer.ggml.{key}")
        return None if token_id is None else str(self.required("tokenizer.ggml.tokens")[token_id])


def read_header(path: Path) -> GgufHeader:
    """The header of a GGUF file. Raises: SourceError if it is not one, or is cut short."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise SourceError(f"{path}: not a readable GGUF file, or cut short ({error}). Fetch it again.") from error
    names = frozenset(tensor.name for tensor in reader.tensors)
    return GgufHeader(path, metadata, names, sum(int(tensor.n_elements) for tensor in reader.tensors))


def check_supported(header: GgufHeader) -> None:
    """Return if transformers reads this file completely.

    Raises: SourceError naming the metadata that is missing or that transformers would not follow.
    """
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        raise SourceError(
            f"{header.path}: architecture {architecture!r}; supported as GGUF: {', '.join(ARCHITECTURES)}. "
            f"{ANOTHER_SOURCE}"
        )
    header.required(f"{architecture}.rope.freq_base")
    header.required("tokenizer.chat_template")
    num_heads = header.required(f"{architecture}.attention.head_count")
    head_dim = header.required(f"{architecture}.embedding_length") // num_heads
    followed_values: dict[str, tuple[Any, ...]] = {
        "split.count": (1,),
        "tokenizer.ggml.add_eos_token": (False,),
        "tokenizer.ggml.add_space_prefix": (False,),
        f"{architecture}.rope.scaling.type": ("none",),
        f"{architecture}.rope.dimension_count": (head_dim,),
        f"{architecture}.attention.key_length": (head_dim,),
        f"{architecture}.attention.value_length": (head_dim,),
        f"{architecture}.attention.sliding_window": (0,),
        f"{architecture}.expert_count": (0,),
    }
    for key, followed in followed_values.items():
        if key in header.metadata and header.metadata[key] not in followed:
            raise SourceError(
                f"{header.path}: metadata {key} is {header.metadata[key]!r}, "
                f"only {followed[0]!r} can be converted. {ANOTHER_SOURCE}"
            )
