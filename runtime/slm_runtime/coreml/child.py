"""Run the probe in a child process and read what became of it."""

import signal
import subprocess
import sys
from pathlib import Path

from slm_runtime.coreml.verdict import Verdict, read_verdict
from slm_runtime.static_graph import StaticGraphSpec

# Compiling took others 20 s for a model of this size; this is for a graph that never comes back.
TIMEOUT_S = 900.0


def probe_command(folder: Path, spec: StaticGraphSpec, cache: Path, num_threads: int) -> list[str]:
    """The child's command line. -P: a file in the working directory must not pass for a module."""
    arguments = [str(folder.absolute()), spec.file, str(cache.absolute()), str(num_threads)]
    return [sys.executable, "-P", "-m", "slm_runtime.coreml.probe", *arguments]


def run_probe(folder: Path, spec: StaticGraphSpec, cache: Path, num_threads: int) -> Verdict:
    """The verdict on one graph, whatever happens to the child. `cache` is a new folder to compile into."""
    command = probe_command(folder, spec, cache, num_threads)
    try:
        child = subprocess.run(  # noqa: S603 (this interpreter, no shell)
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl-C is for this process, which then ends the child; a crash it is not
        )
    except subprocess.TimeoutExpired:
        return Verdict("timeout", f"no answer after {TIMEOUT_S:.0f} s")
    except OSError as error:
        return Verdict("crash", f"no child process could be started ({error})")
    if child.returncode < 0:
        return Verdict("crash", f"ended by {_signal_name(-child.returncode)}{_last_line(child.stderr)}")
    if child.returncode:
        return Verdict("crash", f"ended with exit code {child.returncode}{_last_line(child.stderr)}")
    return read_verdict(cache) or Verdict("crash", "ended without a verdict")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(stderr: bytes) -> str:
    """The last thing the child said, in brackets."""
    lines = stderr.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" ({last[:200]})" if last else ""
