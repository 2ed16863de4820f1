"""Would CoreML run every node of a bundle's static graphs? `python -m slm_export.coreml_check BUNDLE`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from slm_export.coreml_rules import load_rules
from slm_export.extras import require_export_extra
from slm_runtime.bundle import find_bundle
from slm_runtime.command import run_command
from slm_runtime.errors import InputError
from slm_runtime.manifest import read_manifest

# The oldest and the newest version whose wheels the rules were read out of.
VERSIONS = "1.24.4,1.32.0"
PASSED, FAILED = 0, 3


@click.command("coreml_check")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--onnxruntime", default=VERSIONS, show_default=True, help="Versions to check for, with commas.")
def coreml_check(bundle: Path, onnxruntime: str) -> int:
    """Check every node of the CoreML graphs in BUNDLE against the provider's rules and ours. Exit code 0 or 3."""
    require_export_extra()
    from slm_export.coreml_findings import check_graph
    from slm_export.graph_facts import load_graph

    versions = [version.strip() for version in onnxruntime.split(",")]
    for version in versions:
        load_rules().require_known(version)
    folder = find_bundle(bundle)
    specs = read_manifest(folder).coreml
    if not specs:
        raise InputError(f"{folder}: holds no CoreML graph; export it with --profile coreml")
    passed = True
    for spec in specs:
        checked = check_graph(load_graph(folder / spec.file), versions, spec)
        passed &= checked.passed
        click.echo(f"{spec.file}: " + "\n".join(checked.lines()))
    click.echo("every node runs on CoreML by the rules" if passed else "not every graph runs on CoreML alone")
    return PASSED if passed else FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(coreml_check, argv, env_prefix="SLM_COREML_CHECK")


if __name__ == "__main__":
    sys.exit(main())
