"""The int8 decoder of a bundle: quantise, write, measure against the fp32 one."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slm_export.bundle import file_records, write_manifest
from slm_export.decoder import PrefillStep
from slm_export.int8.bounds import measure_bounds
from slm_export.int8.opening import write_opening
from slm_export.int8.prompts import PROMPTS_PER_TASK, calibration_samples
from slm_export.int8.quantize import quantize_step
from slm_export.onnx_export import export_decoder, graph_spec
from slm_export.reference_prompt import ReferencePrompts
from slm_runtime.manifest import GraphSpec, Int8Record, Manifest, MarginBound, OpeningSpec, seal_bounds

Say = Callable[[str], None]
INT8_FILE = "decoder-int8.onnx"


def with_int8(folder: Path, manifest: Manifest, model: Any, tokenizer: Any, *, say: Say) -> Manifest:
    """Add the int8 decoder to the bundle in `folder`, which holds the fp32 one; `model` is used up.

    Returns the manifest, unwritten, with the margin bounds.
    """
    step = PrefillStep(model).eval()
    spec = graph_spec(step.arch, file=INT8_FILE, precision="int8")
    prompts = list(_prompts(tokenizer))
    quantize_step(step, model.get_input_embeddings().weight, prompts, say=say)
    export_decoder(step, spec, folder)
    opening = write_opening(folder, manifest, step, prompts)
    manifest = _with_bounds(dataclasses.replace(manifest, files=file_records(folder)), spec, opening, ())
    write_manifest(folder, manifest)
    return _with_bounds(manifest, spec, opening, measure_bounds(folder, say=say))


def _with_bounds(
    manifest: Manifest, spec: GraphSpec, opening: OpeningSpec | None, bounds: tuple[MarginBound, ...]
) -> Manifest:
    seal = seal_bounds(manifest.int8_digest(spec, opening), bounds)
    return dataclasses.replace(manifest, int8=Int8Record(spec, bounds, seal, opening))


def without_fp32(folder: Path, manifest: Manifest) -> Manifest:
    """Remove the fp32 decoder, and what only it needs, from a bundle that holds both; returns the manifest."""
    assert manifest.int8 is not None
    fp32, roofline = manifest.decoder, manifest.roofline
    removed = {fp32.file, fp32.data_file} | ({roofline.file} if roofline else set())
    for name in removed:
        (folder / name).unlink()
    files = {name: record for name, record in manifest.files.items() if name not in removed}
    return dataclasses.replace(manifest, decoder=manifest.int8.decoder, roofline=None, files=files)


def _prompts(tokenizer: Any) -> Iterator[list[int]]:
    for sample in calibration_samples(PROMPTS_PER_TASK):
        prompts = ReferencePrompts(tokenizer, sample.task)
        yield from (prompts.prompt_ids(text) for text in sample.texts)
