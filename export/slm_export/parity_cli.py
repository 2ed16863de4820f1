"""slm-parity: the PyTorch reference beside the runtime. Parse, call, exit code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from slm_runtime.command import run_command

STRATEGIES = ("packed", "bucketed", "naive", "item")
EXIT_CODES = """\b
Exit codes: 0 all labels equal, 2 usage or input file unusable, 3 a label or a score differs,
4 bundle damaged, 130 interrupted."""


def _split_strategies(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names or (unknown := [name for name in names if name not in STRATEGIES]):
        found = repr(unknown[0]) if names else "nothing"
        raise click.BadParameter(f"{found}, expected some of {','.join(STRATEGIES)}", context, parameter)
    return names


@click.command("slm-parity", epilog=EXIT_CODES)
@click.argument("bundle")
@click.option("--reference", help="Hub id, folder, .gguf file or catalogue name; default: the bundle's own source.")
@click.option("--workload", default="seed", show_default=True, help="seed, or a CSV, TSV or JSONL file (.gz).")
@click.option("--task", "task_path", type=click.Path(path_type=Path), help="Task file (TOML).")
@click.option("--labels", help="Comma-separated labels; default for the seed workload: its own three.")
@click.option(
    "--scoring",
    type=click.Choice(["auto", "first-token", "sequence", "constrained"]),
    help="How labels are scored; default: the task's rule, else auto.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after so many rows of the workload.")
@click.option(
    "--strategies",
    default="packed,bucketed",
    show_default=True,
    callback=_split_strategies,
    help=f"Some of {','.join(STRATEGIES)}.",
)
@click.option("--threads", type=click.IntRange(1), help="Threads of both sides; default: all usable CPUs.")
@click.option("--json", help="Write the result as JSON; - is stdout, instead of the table.")
@click.option("--text-column", default="text", show_default=True, help="Column or key that holds the ticket.")
@click.version_option(package_name="slm-runtime", prog_name="slm-parity")
def slm_parity(**flags: Any) -> int:
    """Compare BUNDLE with PyTorch: the same tickets, threads and process, one after the other.

    The reference answers item by item and in length-sorted batches of 32, then the runtime by each of its strategies.
    Times include tokenisation; loading and a short warm-up are left out.

    \b
    Example:
      slm-parity models/qwen2.5-0.5b-instruct --limit 60 --json parity.json
    """
    from slm_export.parity_command import ParityRequest, compare_bundle

    return compare_bundle(ParityRequest(**flags))


def main(argv: Sequence[str] | None = None) -> int:
    """Run slm-parity; returns the exit code."""
    return run_command(slm_parity, argv, env_prefix="SLM_PARITY")
