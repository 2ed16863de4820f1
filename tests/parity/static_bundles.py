"""Bundles of a tiny checkpoint with CoreML graphs, as `slm-export --profile coreml` makes them."""

from collections.abc import Sequence
from pathlib import Path

from slm_export.cli import main as slm_export


def export_static(
    checkpoint: Path, folder: Path, *, tokens: Sequence[int], past: int = 64, precisions: Sequence[str] = ("fp32",)
) -> Path:
    """`folder`, filled with the CPU's graph and one CoreML graph for each precision and row length."""
    rows = [argument for size in tokens for argument in ("--coreml-tokens", str(size))]
    kinds = [argument for precision in precisions for argument in ("--precision", precision)]
    argv = [str(checkpoint), "--output", str(folder), "--profile", "coreml", "--coreml-past", str(past)]
    assert slm_export([*argv, *rows, *kinds]) == 0
    return folder
