"""Signals and closed pipes: a documented exit code, no traceback, nothing half-written."""

import json
import os
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


def test_an_interrupted_stream_keeps_what_was_labelled(bundle: Path, tmp_path: Path) -> None:
    process = start(bundle, "-o", str(tmp_path / "out.jsonl"))
    assert process.stdin is not None
    process.stdin.write('{"text": "hello"}\n')
    while not any(path.stat().st_size for path in tmp_path.iterdir()):  # written out after each window
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait()
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "interrupted: 1 rows are in" in err
    assert "Traceback" not in err
    assert json.loads((tmp_path / "out.jsonl").read_text())["row"] == 0


def test_an_interrupt_before_the_first_batch_leaves_nothing(bundle: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "in.jsonl"
    os.mkfifo(pipe)
    process = start(bundle, "-i", str(pipe), "-o", str(tmp_path / "out.jsonl"))
    with pipe.open("w"):  # returns when the process has opened its input, for whose first bytes it waits
        process.send_signal(signal.SIGINT)
        process.wait()
    _, err = process.communicate()
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_c29_a_closed_pipe_ends_quietly(bundle: Path, tmp_path: Path) -> None:
    tickets = tmp_path / "in.jsonl"
    tickets.write_text('{"text": "hello"}\n' * 3000)
    process = start(bundle, "-i", str(tickets), "--quiet")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_c29_labels_come_while_the_producer_is_still_writing(bundle: Path) -> None:
    process = start(bundle, "--quiet")
    assert process.stdin is not None
    assert process.stdout is not None
    for row in range(3):
        process.stdin.write(json.dumps({"text": f"ticket {row}"}) + "\n")
        assert json.loads(process.stdout.readline())["row"] == row  # waits for ever if nothing comes before the end
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "", "")


def test_c29_a_named_pipe_is_read_as_it_fills(bundle: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "tickets.jsonl"
    os.mkfifo(pipe)
    process = start(bundle, "-i", str(pipe), "--quiet")
    assert process.stdout is not None
    with pipe.open("w") as stream:
        for row in range(2):
            stream.write(json.dumps({"text": f"ticket {row}"}) + "\n")
            stream.flush()
            assert json.loads(process.stdout.readline())["row"] == row
    assert process.wait() == 0


def test_c29_standard_input_is_utf8_whatever_the_locale(bundle: Path) -> None:
    command = [*RUN, "classify", str(bundle), "--labels", "a,b"]
    lines = b'{"id":"caf\xc3\xa9","text":"r\xc3\xa9seau"}\n{"id":1,"text":"caf\351"}\n{"id":2,"text":"fine"}\n'
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, input=lines, capture_output=True, check=False, env=environment)
    records = [json.loads(line) for line in done.stdout.decode("utf-8").splitlines()]
    assert done.returncode == 1
    assert records[0]["id"] == "café"
    assert "byte offset" in records[1]["error"]
    assert records[2]["label"]


def test_c29_empty_standard_input_ends_cleanly(bundle: Path) -> None:
    process = start(bundle)
    out, err = process.communicate()
    assert (process.returncode, out) == (0, "")
    assert "0 rows" in err
