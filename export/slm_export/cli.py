"""slm-export: build a bundle. Parse, call, exit code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from slm_export.catalog import list_entries
from slm_export.sources import DEFAULT_MODEL
from slm_export.static_profile import StaticProfile
from slm_runtime.command import run_command
from slm_runtime.manifest import GraphPrecision


@click.command("slm-export")
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Folder of the new bundle.")
@click.option("--revision", help="Commit of a hub model; the default model has a pinned one.")
@click.option("--force", is_flag=True, help="Replace an existing output folder.")
@click.option("--offline", is_flag=True, help="Use only what is on this machine.")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Where fetched models are kept.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the model.")
@click.option("--no-verify", is_flag=True, help="Skip the comparison with PyTorch; the bundle records none.")
@click.option(
    "--profile",
    "profiles",
    type=click.Choice(["cpu", "coreml"]),
    multiple=True,
    default=["cpu"],
    show_default=True,
    help="What to export for; repeatable. coreml adds graphs of fixed shapes to those of the CPU.",
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(["fp32", "int8", "fp16"]),
    multiple=True,
    default=["fp32"],
    show_default=True,
    help="Of the graphs; repeatable. int8 is for the CPU alone, with fp32 beside it for what is in doubt; fp16 is for "
    "the coreml profile alone.",
)
@click.option(
    "--coreml-tokens",
    type=click.IntRange(1, 4096),
    multiple=True,
    default=[64, 128, 256, 512],
    show_default=True,
    metavar="S",
    help="Tokens of a row in a CoreML graph; repeatable, one graph for each.",
)
@click.option(
    "--coreml-past",
    type=click.IntRange(1, 4096),
    multiple=True,
    default=[256],
    show_default=True,
    metavar="P",
    help="Most cached tokens in front of a row in a CoreML graph, rounded up to a multiple of 64; repeatable.",
)
@click.option("--list", is_flag=True, help="List the models that need no hub, and stop.")
@click.version_option(package_name="slm-runtime", prog_name="slm-export")
def slm_export(model: str, output: Path | None, **flags: Any) -> int:
    """Convert MODEL to a bundle for slm-run.

    MODEL is a hub id, a folder in the transformers layout, a .gguf file, or a name that --list shows.

    \b
    Example:
      slm-export Qwen/Qwen2.5-0.5B-Instruct --output models/qwen2.5-0.5b-instruct
    """
    if flags.pop("list"):
        return _print_catalogue()
    if output is None:
        raise click.UsageError("missing --output: the folder of the new bundle, for example models/NAME")
    from slm_export.export_command import ExportRequest, export_bundle

    profiles, precisions = flags.pop("profiles"), flags.pop("precisions")
    if "fp16" in precisions and "coreml" not in profiles:
        raise click.UsageError("--precision fp16 is for CoreML graphs: add --profile coreml")
    tokens, past = flags.pop("coreml_tokens"), flags.pop("coreml_past")
    static = StaticProfile.of_options(precisions, tokens, past) if "coreml" in profiles else None
    on_cpu = tuple(precision for precision in get_args(GraphPrecision) if precision in precisions) or ("fp32",)
    return export_bundle(ExportRequest(model=model, output=output, precision=on_cpu, static=static, **flags))


def _print_catalogue() -> int:
    for entry in list_entries():
        click.echo(f"{entry.name}\n    {entry.description}")
        click.echo(f"    {entry.size_bytes / 1e6:.0f} MB, {entry.licence}; {entry.origin}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run slm-export; returns the exit code."""
    return run_command(slm_export, argv, env_prefix="SLM_EXPORT")
