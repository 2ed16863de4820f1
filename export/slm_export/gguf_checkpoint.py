"""A GGUF file converted once into a float32 checkpoint folder; nothing later needs to know about GGUF."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slm_export.checkpoint_folder import read_json_object, spdx_name
from slm_export.gguf_file import ANOTHER_SOURCE, GgufHeader, check_supported, read_header
from slm_export.gguf_tokenizer import build_tokenizer
from slm_export.resources import require_room
from slm_runtime.errors import SourceError

# Part of the cache key: raise it whenever the converted folder would come out differently.
CONVERTER_VERSION = 1
SOURCE_FILE = "source.json"
FLOAT32_BYTES = 4
# Peak over the float32 weights, measured: 3.95 GB for 2.52 GB, and 1.15 GB for 0.54 GB.
MEMORY_FACTOR = 2


def converted_folder(sha256: str, cache_dir: Path) -> Path:
    """Where the checkpoint converted from the GGUF file of that digest is, once it exists."""
    return cache_dir / "checkpoints" / f"{sha256[:32]}-v{CONVERTER_VERSION}"


def convert(path: Path, sha256: str, cache_dir: Path, say: Callable[[str], None]) -> Path:
    """The checkpoint folder made from the GGUF file at `path`; made on the first call, found on later ones.

    Raises: SourceError if the file is damaged or holds what transformers would leave out; ResourceError.
    """
    target = converted_folder(sha256, cache_dir)
    if target.is_dir():
        return target
    header = read_header(path)
    check_supported(header)
    tokenizer = build_tokenizer(header)
    weight_bytes = header.num_weights * FLOAT32_BYTES
    require_room(cache_dir, weight_bytes, MEMORY_FACTOR * weight_bytes, f"converting {path.name}")
    say(f"{path.name}: converting once to float32 safetensors, {weight_bytes / 1e6:.0f} MB")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="convert-") as temporary:
        folder = Path(temporary) / "checkpoint"
        _load_model(header).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        _write_source(header, sha256, folder)
        _publish(folder, target)
    return target


def converted_licence(folder: Path) -> str:
    """The licence that the GGUF file stated when `folder` was made from it, else `unknown`."""
    return str(read_json_object(folder / SOURCE_FILE)["licence"])


def _load_model(header: GgufHeader) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            header.path.parent, gguf_file=header.path.name, dtype=torch.float32, output_loading_info=True
        )
    except (NotImplementedError, ValueError, RuntimeError, KeyError) as error:
        raise SourceError(f"{header.path}: transformers cannot load it ({error}). {ANOTHER_SOURCE}") from error
    model, report = loaded
    _check_all_loaded(header, model, report)
    return model


def _check_all_loaded(header: GgufHeader, model: Any, report: dict[str, Any]) -> None:
    """transformers skips tensors it has no place for and makes missing ones up, both without a word."""
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    skipped = sorted(header.tensor_names - set(get_gguf_hf_weights_map(model)))
    missing = sorted(report["missing_keys"])
    if skipped or missing:
        raise SourceError(
            f"{header.path}: tensors without a place in {model.config.model_type}: {skipped or 'none'}; "
            f"weights the file lacks: {missing or 'none'}. {ANOTHER_SOURCE}"
        )
    assert model.config.tie_word_embeddings == ("output.weight" not in header.tensor_names)


def _write_source(header: GgufHeader, sha256: str, folder: Path) -> None:
    source = {
        "file": header.path.name,
        "sha256": sha256,
        "name": header.metadata.get("general.name"),
        "licence": spdx_name(header.metadata.get("general.license")),
        "converter_version": CONVERTER_VERSION,
    }
    (folder / SOURCE_FILE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")


def _publish(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        # Another process was faster: its folder is the same, ours goes with the temporary folder.
        if not target.is_dir():
            raise
