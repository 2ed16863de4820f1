"""A bundle of a tiny checkpoint, built as slm-export does it but not verified: that is what the tests are for."""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from slm_export.bundle import write_bundle, write_manifest
from slm_export.sources import resolve


def make_bundle(folder: Path, checkpoint: Path) -> Path:
    """`folder`, filled with the bundle of the checkpoint folder."""
    folder.mkdir()
    model = AutoModelForCausalLM.from_pretrained(checkpoint, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    manifest = write_bundle(
        folder, model, tokenizer, resolve(str(checkpoint)), str(checkpoint), say=lambda message: None
    )
    write_manifest(folder, manifest)
    return folder
