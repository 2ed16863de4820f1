"""Signals and closed pipes: a documented exit code, no traceback, nothing half-written."""

import signal
import subprocess
import sys
import time
from pathlib import Path

RUN = [sys.executable, "-c", "import sys; from slm_runtime.cli import main; sys.exit(main())"]


def start(bundle: Path, *argv: str) -> subprocess.Popen[str]:
    command = [*RUN, "classify", str(bundle), "--labels", "a,b", *argv]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def test_an_interrupt_ends_with_130_and_leaves_no_output(bundle: Path, tmp_path: Path) -> None:
    process = start(bundle, "-o", str(tmp_path / "out.jsonl"))
    assert process.stdin is not None
    process.stdin.write('{"text": "hello"}\n')
    while not list(tmp_path.iterdir()):  # the output is opened under a temporary name before the model is loaded
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_c29_a_closed_pipe_ends_quietly(bundle: Path, tmp_path: Path) -> None:
    tickets = tmp_path / "in.jsonl"
    tickets.write_text('{"text": "hello"}\n' * 3000)
    process = start(bundle, "-i", str(tickets), "--quiet")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
