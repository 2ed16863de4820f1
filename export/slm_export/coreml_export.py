"""Write the graphs of the CoreML profile into a bundle, one after the other."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from onnx import helper
from torch import Tensor

from slm_export.coreml_graph import build_static_graph
from slm_export.decoder import PrefillStep
from slm_export.onnx_stream import save_streamed
from slm_export.static_profile import StaticProfile
from slm_runtime.static_graph import StaticGraphSpec, StaticPrecision

Say = Callable[[str], None]
# Part of every cache key: raise it when equal weights and nodes come to mean other numbers.
BUILDER_VERSION = 1


def write_static_graphs(
    step: PrefillStep, profile: StaticProfile, folder: Path, *, say: Say
) -> tuple[StaticGraphSpec, ...]:
    """Write the graphs of `profile`, and the two vectors that their caller needs, into `folder`.

    Only one weight is held in memory beside those of `step`.
    """
    np.save(folder / StaticGraphSpec.final_norm, cast("Tensor", step.norm.weight).detach().float().numpy())
    np.save(folder / StaticGraphSpec.inverse_frequencies, step.inverse_frequencies.numpy())
    digest = weights_digest(step)
    specs = []
    for precision, num_tokens, past_len in profile.sizes:
        spec = static_spec(step, precision, num_tokens, past_len)
        say(f"writing {spec.file}")
        specs.append(write_static_graph(step, spec, digest, folder))
    return tuple(specs)


def write_static_graph(step: PrefillStep, spec: StaticGraphSpec, digest: str, folder: Path) -> StaticGraphSpec:
    """Write `spec.file`; returns `spec` with the cache key that is in the file."""
    model, constants = build_static_graph(step, spec)
    content = model.SerializeToString(deterministic=True)
    key = hashlib.sha256(f"{digest} {BUILDER_VERSION} ".encode() + content).hexdigest()[:40]
    helper.set_model_props(model, {spec.cache_key_property: key})
    save_streamed(model, constants, folder / spec.file)
    return replace(spec, cache_key=key)


def static_spec(step: PrefillStep, precision: StaticPrecision, num_tokens: int, past_len: int) -> StaticGraphSpec:
    """The contract of one graph of `step`, its cache key still empty."""
    arch = step.arch
    return StaticGraphSpec(
        file=f"decoder-coreml-s{num_tokens}-p{past_len}-{precision}.onnx",
        precision=precision,
        num_tokens=num_tokens,
        past_len=past_len,
        num_layers=arch.num_layers,
        num_heads=arch.num_heads,
        num_kv_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        hidden_size=arch.hidden_size,
        norm_epsilon=cast("float", step.norm.variance_epsilon),
        rope_scaling=step.rope_scaling,
        cache_key="",
    )


def weights_digest(step: PrefillStep) -> str:
    """sha256 over all weights of the decoder."""
    digest = hashlib.sha256()
    for name, weight in step.named_parameters():
        digest.update(name.encode())
        digest.update(weight.detach().contiguous().numpy().data)
    return digest.hexdigest()
