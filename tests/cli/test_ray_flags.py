"""What a Ray job refuses before it starts, each with one line."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

LABELS = ("--labels", "a,b")


def write_tickets(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "hello"}\n')
    return folder


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--explain", "0"), "--explain: only with --engine local"),
        (("--dry-run",), "--dry-run: only with --engine local"),
        (("--strict", "--limit", "3"), "--strict, --limit: only with --engine local"),
        (("-i", "-"), "-i -: only with --engine local"),
        (("-o", "-"), "-o -: only with --engine local"),
        (("--engine", "local", "--concurrency", "2"), "--concurrency: only with --engine ray"),
        (("--engine", "local", "--ray-address", "auto"), "--ray-address: only with --engine ray"),
        (("--engine", "local", "--output-format", "csv"), "--output-format: only with --engine ray"),
        (("-o", "labels.csv"), "--output-format csv"),
        (("-o", "in/labels"), "lies in the input"),
        (("-o", "s3://bucket"), "expected a folder below it"),
        (("-i", "empty"), "empty/: no input there (found nothing)"),
        (("-i", "in/*.csv"), "in/*.csv: no input there (found a.jsonl)"),
        (("-i", "nothing"), "nothing: not found"),
        (("--resume", "--overwrite"), "give one of them"),
        (("--ray-address", "ray://127.0.0.1:1"), "expected HOST:PORT"),
        (("--ray-address", "nonsense"), "expected HOST:PORT"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(
    run, bundle: Path, tmp_path: Path, monkeypatch, argv: tuple[str, ...], message: str
) -> None:
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    write_tickets(tmp_path / "in")
    (tmp_path / "empty").mkdir()
    outcome = run("classify", bundle, "-i", "in", "-o", "out", *LABELS, "--engine", "ray", *argv)
    assert (outcome.code, len(outcome.err.splitlines()), outcome.out) == (2, 1, ""), outcome.err
    assert message in outcome.err
    assert not (tmp_path / "out" / "a.jsonl").exists()


def test_a_cluster_that_is_not_there_is_one_quick_line(run, bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    argv = (
        "classify",
        bundle,
        "-i",
        write_tickets(tmp_path / "in"),
        "-o",
        tmp_path / "out",
        *LABELS,
        "--engine",
        "ray",
    )
    for unreachable in (address, "no.such.host.invalid:6379", "auto"):
        outcome = run(*argv, "--ray-address", unreachable)
        assert (outcome.code, len(outcome.err.splitlines())) == (4, 1), outcome.err
        assert f"--ray-address {unreachable}: no Ray cluster can be reached" in outcome.err
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_without_ray_the_message_names_the_extra(bundle: Path, tmp_path: Path) -> None:
    block = "import sys; sys.modules['ray'] = None; from slm_runtime.cli import main; sys.exit(main())"
    argv = [
        "classify",
        bundle,
        "-i",
        write_tickets(tmp_path / "in"),
        "-o",
        tmp_path / "out",
        *LABELS,
        "--engine",
        "ray",
    ]
    command = [sys.executable, "-c", block, *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "pip install 'slm-runtime[ray]'" in done.stderr


def test_the_command_line_does_not_load_ray(bundle: Path, tmp_path: Path) -> None:
    code = "import sys; from slm_runtime.cli import main; main(sys.argv[1:]); sys.exit('ray' in sys.modules)"
    argv = ["classify", str(bundle), "-i", str(write_tickets(tmp_path / "in") / "a.jsonl"), *LABELS]
    assert subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, check=False).returncode == 0
