"""Lay out a bundle: everything is written to a temporary folder beside the target and renamed last."""

import importlib.metadata
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from slm_export.coreml_export import write_static_graphs
from slm_export.decoder import PrefillStep
from slm_export.families import Architecture
from slm_export.onnx_export import MIN_ONNXRUNTIME, export_decoder, graph_spec, write_normalizer
from slm_export.resources import require_room
from slm_export.roofline import write_roofline
from slm_export.sources import Checkpoint
from slm_export.static_profile import StaticProfile
from slm_runtime.errors import OutputError
from slm_runtime.integrity import sha256_of
from slm_runtime.manifest import (
    MANIFEST_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    FileRecord,
    Manifest,
    MatrixSpec,
    ModelInfo,
    NormalizerSpec,
    RooflineSpec,
)

Say = Callable[[str], None]
DECODER_FILE = "decoder-fp32.onnx"
RECORDED_TOOLS = (
    "slm-runtime",
    "torch",
    "transformers",
    "optimum",
    "optimum-onnx",
    "onnx",
    "onnxruntime",
    "tokenizers",
)
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
# The trace and the finished graph hold the weights once each for a short while.
_TRACE_COPIES = 2


def check_target(target: Path, *, force: bool) -> None:
    """Return when a bundle may be written to `target`.

    Raises:
        OutputError: it exists and `force` is off, or it is something other than a bundle or an empty folder.
    """
    if not target.exists():
        return
    if not force:
        raise OutputError(f"{target}: exists already; use --force to replace it, or another --output")
    if not target.is_dir() or (any(target.iterdir()) and not (target / MANIFEST_FILE).is_file()):
        raise OutputError(f"{target}: is not a bundle, so --force does not replace it; choose another --output")


@contextmanager
def staged_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """A temporary folder beside `target` that becomes `target` when the block ends without an error.

    Raises:
        OutputError: `target` exists and `force` is off, or the place cannot be written.
    """
    check_target(target, force=force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror}); choose another --output") from error
    try:
        yield staging
        _sync(staging)
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror or error}); nothing was kept") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Readable by everyone, as files that a user makes are, and on disk before the folder gets its name."""
    for path in (*folder.iterdir(), folder):
        path.chmod(0o755 if path.is_dir() else 0o644)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_room_for(arch: Architecture, checkpoint: Path, target: Path, static: StaticProfile | None = None) -> None:
    """Return when disk and memory can hold the export of a checkpoint, weights widened to float32.

    Raises:
        ResourceError: they cannot.
        SourceError: a static graph would be larger than one file may be.
    """
    num_weights = sum(_num_weights(path) for path in checkpoint.glob("*.safetensors"))
    matrices = arch.vocab_size * arch.hidden_size * (1 if arch.tied_head else 2)
    decoder, total = 4 * (num_weights - matrices), 4 * num_weights
    memory = total + decoder * _TRACE_COPIES
    disk = memory + (static.num_bytes(num_weights - matrices) if static else 0)
    if static:
        static.require_small_graphs(num_weights - matrices)
    require_room(target, disk, memory, f"exporting to {target}")


def _num_weights(path: Path) -> int:
    with safe_open(path, framework="numpy") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118


def write_bundle(
    folder: Path,
    model: Any,
    tokenizer: Any,
    checkpoint: Checkpoint,
    source: str,
    *,
    static: StaticProfile | None = None,
    say: Say,
) -> Manifest:
    """Write graphs, matrices, tokenizer and template of a transformers causal LM; returns the manifest, unwritten.

    `source` is what slm-export was given; slm-parity resolves it again.
    """
    step = PrefillStep(model)
    arch = step.arch
    spec = graph_spec(arch, file=DECODER_FILE, precision="fp32")
    normalizer, roofline = NormalizerSpec("normalizer.onnx"), RooflineSpec("roofline.onnx")
    say("writing the embedding matrix")
    embeddings, lm_head = write_matrices(folder, model)
    say(f"tracing {arch.num_layers} layers to ONNX")
    export_decoder(step, spec, folder)
    write_roofline(roofline, spec, folder)
    write_normalizer(normalizer, folder)
    coreml = write_static_graphs(step, static, folder, say=say) if static else ()
    _copy_tokenizer(checkpoint.folder, folder, tokenizer)
    return Manifest(
        model=ModelInfo(
            id=checkpoint.model_id,
            revision=checkpoint.revision,
            source=source,
            licence=checkpoint.licence,
            family=arch.family,
            max_positions=arch.max_positions,
        ),
        decoder=spec,
        normalizer=normalizer,
        roofline=roofline,
        embeddings=embeddings,
        lm_head=lm_head,
        min_onnxruntime=MIN_ONNXRUNTIME,
        special_tokens=special_tokens(tokenizer),
        files=file_records(folder),
        tools={name: importlib.metadata.version(name) for name in RECORDED_TOOLS},
        coreml=coreml,
    )


def special_tokens(tokenizer: Any) -> dict[str, str]:
    """The tokens that a chat template may name."""
    return {name: str(value) for name in SPECIAL_TOKENS if (value := getattr(tokenizer, name, None))}


def file_records(folder: Path) -> dict[str, FileRecord]:
    """Size and digest of every file of the bundle but the manifest."""
    paths = sorted(path for path in folder.iterdir() if path.name != MANIFEST_FILE)
    return {path.name: FileRecord(path.stat().st_size, sha256_of(path)) for path in paths}


def write_matrices(folder: Path, model: Any) -> tuple[MatrixSpec, MatrixSpec | None]:
    """The embedding matrix, and the head's where it is another one: by value, not by what the config claims."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    tied = embedding.data_ptr() == head.data_ptr() or torch.equal(embedding, head)
    spec = _write_matrix(folder / "embeddings.npy", embedding)
    return spec, None if tied else _write_matrix(folder / "lm_head.npy", head)


def _write_matrix(path: Path, weight: Tensor) -> MatrixSpec:
    """Store float32 weights in 16 bits where that loses nothing: most checkpoints hold bfloat16."""
    weight = weight.detach().float().contiguous()
    if torch.equal(weight.bfloat16().float(), weight):
        np.save(path, (weight.numpy().view(np.uint32) >> 16).astype(np.uint16))
        return MatrixSpec(path.name, "bfloat16")
    if torch.equal(weight.half().float(), weight):
        np.save(path, weight.half().numpy())
        return MatrixSpec(path.name, "float16")
    np.save(path, weight.numpy())
    return MatrixSpec(path.name, "float32")


def _copy_tokenizer(source: Path, folder: Path, tokenizer: Any) -> None:
    """Tokenizer, template and licence. A template may stand in a file of its own or in the tokenizer's config."""
    shutil.copyfile(source / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    (folder / TEMPLATE_FILE).write_text(tokenizer.chat_template, encoding="utf-8")
    for path in source.glob("LICENSE*"):
        shutil.copyfile(path, folder / "LICENSE")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """The last file of a bundle: with it the folder becomes one."""
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
