"""CoreML graphs for the bundle of a tiny checkpoint."""

import dataclasses
from pathlib import Path

from transformers import AutoModelForCausalLM

from slm_export.coreml_export import write_static_graphs
from slm_export.decoder import PrefillStep
from slm_export.static_profile import StaticProfile
from slm_runtime.integrity import sha256_of
from slm_runtime.manifest import MANIFEST_FILE, FileRecord, read_manifest


def add_static_graphs(bundle: Path, checkpoint: Path, profile: StaticProfile) -> Path:
    """`bundle`, with the graphs of `profile` in it and in its manifest."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, local_files_only=True).eval()
    graphs = write_static_graphs(PrefillStep(model), profile, bundle, say=lambda _: None)
    manifest = read_manifest(bundle)
    new = {
        name: FileRecord((bundle / name).stat().st_size, sha256_of(bundle / name))
        for graph in graphs
        for name in graph.files
    }
    manifest = dataclasses.replace(manifest, coreml=graphs, files={**manifest.files, **new})
    (bundle / MANIFEST_FILE).write_text(manifest.to_json())
    return bundle
