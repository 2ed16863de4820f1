"""What the three commands share: errors become one line and an exit code, nothing else does."""

import os
import sys
from collections.abc import Sequence

import click

from slm_runtime.errors import SlmError
from slm_runtime.interruption import RaiseOnSignal

ALL_LABELLED, SOME_FAILED = 0, 1
USAGE = 2
INTERRUPTED = 130


def run_command(command: click.Command, argv: Sequence[str] | None, *, env_prefix: str) -> int:
    """The exit code of `command` on `argv` (None: the process's own arguments).

    A closed pipe on standard output ends quietly with 0: the reader has what it wanted. SIGTERM and SIGHUP end a
    command as Ctrl-C does.
    """
    with RaiseOnSignal():
        return _run(command, list(sys.argv[1:] if argv is None else argv), env_prefix)


def _run(command: click.Command, arguments: list[str], env_prefix: str) -> int:
    try:
        # Not command.main(), which turns a closed pipe into exit code 1.
        with command.make_context(command.name, arguments, auto_envvar_prefix=env_prefix) as context:
            result = command.invoke(context)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:  # --help and --version
        return stop.exit_code
    except SlmError as error:
        return _say(command, str(error), error.exit_code)
    except click.ClickException as error:
        return _usage_error(command, error)
    except (KeyboardInterrupt, click.Abort):
        return _say(command, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Python flushes standard output once more at exit; it must find a place to do so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def say_on_stderr(message: str) -> None:
    """A notice of slm-run for people."""
    click.echo(f"slm-run: {message}", err=True)


def _usage_error(command: click.Command, error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    failed_in = getattr(error, "ctx", None)
    where = f" (see {failed_in.command_path} --help)" if failed_in else ""
    return _say(command, f"{error.format_message()}{where}", USAGE)


def _say(command: click.Command, message: str, code: int) -> int:
    print(f"{command.name}: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return code
