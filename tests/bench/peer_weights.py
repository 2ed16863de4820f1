"""The reference's weights in the peers' own formats, made once and kept in the user's cache."""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from slm_runtime.errors import SourceError
from slm_runtime.integrity import cache_folder

Write = Callable[[Path, Path], None]


def converted(checkpoint: Path, name: str, write: Write) -> Path:
    """The file or folder that `write(checkpoint, target)` makes of a checkpoint folder; found again on later calls."""
    target = cache_folder() / "peers" / f"{_stamp(checkpoint)}-{name}"
    if not target.exists():
        sys.stderr.write(f"peers: converting {checkpoint.name} once to {target}\n")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="convert-") as temporary:
            write(checkpoint, Path(temporary) / name)
            (Path(temporary) / name).rename(target)
    return target


def _stamp(checkpoint: Path) -> str:
    files = sorted(checkpoint.glob("*.safetensors"))
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def write_gguf(checkpoint: Path, target: Path) -> None:
    """A float32 GGUF file without a vocabulary: every path here is given the same token ids.

    Raises:
        SourceError: another architecture than qwen2, whose weights llama.cpp keeps in transformers' order.
    """
    from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
    from safetensors import safe_open

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "qwen2":
        raise SourceError(f"{checkpoint}: a {config['model_type']} model; the llama.cpp comparison knows qwen2 only")
    writer = GGUFWriter(target, "qwen2")
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    names = get_tensor_name_map(MODEL_ARCH.QWEN2, config["num_hidden_layers"])
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                stem, _, suffix = name.rpartition(".")
                # A tied head is left out: llama.cpp then takes the embedding.
                if stem != "lm_head" or not config["tie_word_embeddings"]:
                    writer.add_tensor(f"{names.get_name(stem)}.{suffix}", tensors.get_tensor(name).float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_ctranslate2(checkpoint: Path, target: Path) -> None:
    """A CTranslate2 model folder in float32."""
    from ctranslate2.converters import TransformersConverter  # type: ignore[import-untyped]

    TransformersConverter(str(checkpoint)).convert(str(target), quantization="float32")
