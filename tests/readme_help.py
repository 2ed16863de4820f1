"""Keeps the README's command reference equal to click's own help.

python tests/readme_help.py            rewrites the blocks between `<!-- help:COMMAND -->` and `<!-- /help -->`
python tests/readme_help.py --check    exits 1 and names the blocks that differ
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from slm_export.cli import slm_export
from slm_export.parity_cli import slm_parity
from slm_runtime.cli import slm_run

README = Path(__file__).parents[1] / "README.md"
WIDTH = 100  # fixed, so that the text does not depend on the terminal
PROGRAMS: tuple[click.Command, ...] = (slm_export, slm_run, slm_parity)
BLOCK = re.compile(r"(?P<start><!-- help:(?P<command>[^\n]+?) -->\n).*?(?P<end><!-- /help -->)", re.DOTALL)


def help_texts() -> dict[str, str]:
    """Command line to help text, of every program and every subcommand."""
    texts: dict[str, str] = {}
    for program in PROGRAMS:
        texts |= _help_texts(program, None)
    return texts


def _help_texts(command: click.Command, parent: click.Context | None) -> dict[str, str]:
    context = click.Context(
        command, parent=parent, info_name=command.name, terminal_width=WIDTH, max_content_width=WIDTH
    )
    texts = {context.command_path: command.get_help(context)}
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        texts |= _help_texts(child, context)
    return texts


def rewritten(text: str, helps: dict[str, str]) -> str:
    """`text` with the content of every block replaced by the command's help."""

    def block(match: re.Match[str]) -> str:
        content = helps.get(match["command"], "no such command")
        return f"{match['start']}```text\n{content.rstrip()}\n```\n{match['end']}"

    return BLOCK.sub(block, text)


def differences(text: str, helps: dict[str, str]) -> list[str]:
    """What is wrong with the blocks of `text`, one phrase each; empty when nothing is."""
    found = {match["command"]: match[0] for match in BLOCK.finditer(text)}
    missing = [f"no block for {command}" for command in helps if command not in found]
    unknown = [f"a block for {command}, which is no command" for command in found if command not in helps]
    stale = [
        f"the help of {command} differs" for command in found if rewritten(found[command], helps) != found[command]
    ]
    return missing + (unknown or stale)


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite or check a README; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the README differs")
    parser.add_argument("readme", nargs="?", type=Path, default=README, help="another file than README.md")
    arguments = parser.parse_args(argv)
    text, helps = arguments.readme.read_text(encoding="utf-8"), help_texts()
    if not arguments.check:
        text = rewritten(text, helps)
        arguments.readme.write_text(text, encoding="utf-8")
    if problems := differences(text, helps):
        print(f"{arguments.readme}: {'; '.join(problems)}. Run: python tests/readme_help.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
