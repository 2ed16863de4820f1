"""C30: a run that was killed, interrupted or torn goes on, and ends as if nothing had happened."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = [sys.executable, "-c", "import sys; from slm_runtime.cli import main; sys.exit(main())"]
LABELS = ("--labels", "billing,technical,account")
# Many small batches: many places to stop at.
FLAGS = (*LABELS, "--batch-tokens", "150")


def write_tickets(path: Path, count: int = 200) -> Path:
    words = ["wifi", "down", "invoice", "twice", "login", "réseau", "請求", "crash", "refund"]
    random.seed(7)
    with path.open("w", encoding="utf-8") as stream:
        for row in range(count):
            text = " ".join(random.choices(words, k=random.choice((1, 3, 10, 40))))
            stream.write(json.dumps({"id": f"t{row}", "text": "" if row % 41 == 7 else text}) + "\n")
    return path


@pytest.fixture(scope="module")
def tickets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tickets(tmp_path_factory.mktemp("tickets") / "in.jsonl")


def start(bundle: Path, tickets: Path, out: Path, *argv: str, flags: tuple[str, ...] = FLAGS) -> subprocess.Popen[str]:
    command = [*RUN, "classify", str(bundle), "-i", str(tickets), "-o", str(out), *flags, *argv]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def journal_of(out: Path) -> Path:
    return out.with_name(out.name + ".journal")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def stop_midway(process: subprocess.Popen[str], out: Path, number: signal.Signals, *, lines: int = 4) -> str:
    """Signal the process when its journal holds so many lines; returns what it said."""
    while not journal_of(out).exists() or journal_of(out).read_bytes().count(b"\n") < lines:
        assert process.poll() is None, "finished before it could be stopped"
        time.sleep(0.002)
    process.send_signal(number)
    return process.communicate()[1]


@pytest.fixture(scope="module")
def whole(bundle: Path, tickets: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What an uninterrupted run writes."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    process = start(bundle, tickets, out)
    process.communicate()
    assert process.returncode == 1  # the empty tickets
    return out.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_c30_a_signal_finishes_the_batch_and_says_how_to_go_on(
    bundle: Path, tickets: Path, whole: bytes, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out.jsonl"
    process = start(bundle, tickets, out)
    err = stop_midway(process, out, number)
    assert process.returncode == 130
    assert "go on with --resume" in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.journal"]
    again = start(bundle, tickets, out, "--resume", "--threads", "1")
    assert "rows are done already" in again.communicate()[1]
    assert [json.loads(line)["label"] for line in out.read_text().splitlines()] == [
        json.loads(line)["label"] for line in whole.splitlines()
    ]


def test_c30_killed_twenty_times_in_a_row_and_still_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    tickets = write_tickets(tmp_path / "in.jsonl", 3000)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    start(bundle, tickets, whole).communicate()
    random.seed(20)
    sizes = [0]
    for kill in range(20):
        process = start(bundle, tickets, out, "--resume")
        wanted = sizes[-1] + random.randrange(1, 8000) if kill % 3 else 0
        while size_of(journal_of(out)) < wanted:
            assert process.poll() is None, "finished before it could be killed"
        time.sleep(random.uniform(0, 0.02 if wanted else 0.4))
        process.kill()
        process.communicate()
        sizes.append(size_of(journal_of(out)))
    assert len(set(sizes)) > 8
    while not out.exists():
        process = start(bundle, tickets, out, "--resume")
        assert "Traceback" not in process.communicate()[1]
        assert process.returncode == 1
    assert out.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.journal")) + list(tmp_path.glob(".*"))
    assert json.loads((tmp_path / "out.jsonl.run.json").read_text())["counts"]["rows"] == 3000


def test_c30_a_journal_torn_at_any_byte_loses_only_its_last_group(
    run, bundle: Path, tickets: Path, whole: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = start(bundle, tickets, out)
    stop_midway(process, out, signal.SIGKILL, lines=8)
    journal = journal_of(out).read_bytes()
    third_line = len(b"".join(journal.splitlines(keepends=True)[:3]))
    random.seed(3)
    cuts = [0, 5, third_line - 1, third_line, third_line + 1, *random.sample(range(len(journal)), 8)]
    for cut in cuts:
        out.unlink(missing_ok=True)
        journal_of(out).write_bytes(journal[:cut])
        outcome = run("classify", bundle, "-i", tickets, "-o", out, *FLAGS, "--resume")
        assert outcome.code == 1, outcome.err
        assert out.read_bytes() == whole, f"cut at byte {cut}"
        assert not journal_of(out).exists()


def test_c30_a_flipped_bit_is_not_believed(run, bundle: Path, tickets: Path, whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    stop_midway(start(bundle, tickets, out), out, signal.SIGKILL, lines=6)
    damaged = bytearray(journal_of(out).read_bytes())
    damaged[-60] ^= 1
    journal_of(out).write_bytes(bytes(damaged))
    outcome = run("classify", bundle, "-i", tickets, "-o", out, *FLAGS, "--resume")
    assert "bytes of a torn record were cut off" in outcome.err
    assert out.read_bytes() == whole


def test_resuming_what_is_complete_changes_nothing(run, bundle: Path, tickets: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    argv = ("classify", bundle, "-i", tickets, "-o", out, *FLAGS, "--resume")
    assert run(*argv).code == 1
    before = out.read_bytes(), out.stat().st_mtime_ns
    outcome = run(*argv)
    assert (outcome.code, "complete already" in outcome.err) == (1, True)
    assert (out.read_bytes(), out.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("--labels", "billing,technical,sales"), "task was"),
        ((*LABELS, "--scoring", "constrained"), "scoring was"),
        ((*LABELS, "--max-tokens", "300"), "token limit was"),
        ((*LABELS, "--truncate", "left"), "truncation was"),
        ((*LABELS, "--limit", "150"), "limit was"),
        ((*LABELS, "--id-column", "text"), "id column was"),
    ],
)
def test_another_run_does_not_resume_this_one(
    run, bundle: Path, tickets: Path, tmp_path: Path, argv: tuple[str, ...], name: str
) -> None:
    out = tmp_path / "out.jsonl"
    stop_midway(start(bundle, tickets, out), out, signal.SIGKILL)
    before = journal_of(out).read_bytes()
    outcome = run("classify", bundle, "-i", tickets, "-o", out, "--batch-tokens", 150, *argv, "--resume")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert name in outcome.err
    assert journal_of(out).read_bytes() == before
    assert not out.exists()


def change_a_file(bundle: Path, name: str) -> None:
    """Another bundle: one file differs, and the manifest knows."""
    content = (bundle / name).read_bytes() + b"\n"
    (bundle / name).write_bytes(content)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][name] = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_a_changed_input_or_bundle_is_named(run, own_bundle: Path, tmp_path: Path) -> None:
    tickets, out = write_tickets(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    stop_midway(start(own_bundle, tickets, out), out, signal.SIGKILL)
    with tickets.open("a") as stream:
        stream.write('{"text": "one more"}\n')
    change_a_file(own_bundle, "golden.json")
    outcome = run("classify", own_bundle, "-i", tickets, "-o", out, *FLAGS, "--resume")
    assert outcome.code == 2
    assert "input was" in outcome.err
    assert "model was" in outcome.err


def test_starting_over_deletes_nothing_silently(run, bundle: Path, tickets: Path, whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    stop_midway(start(bundle, tickets, out), out, signal.SIGKILL)
    argv = ("classify", bundle, "-i", tickets, "-o", out, *FLAGS)
    outcome = run(*argv)
    assert outcome.code == 2
    assert "--resume" in outcome.err
    assert "--overwrite" in outcome.err
    assert journal_of(out).exists()
    assert run(*argv, "--overwrite").code == 1
    assert out.read_bytes() == whole
    assert not journal_of(out).exists()


def test_an_output_that_is_not_ours_is_not_replaced(run, bundle: Path, tickets: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious\n")
    argv = ("classify", bundle, "-i", tickets, "-o", out, *FLAGS)
    for flags in ((), ("--resume",)):
        assert run(*argv, *flags).code == 2
        assert out.read_text() == "precious\n"
    out.unlink()
    stop_midway(start(bundle, tickets, out), out, signal.SIGKILL)
    out.write_text("precious\n")
    outcome = run(*argv, "--resume")
    assert (outcome.code, "has appeared" in outcome.err) == (2, True)
    assert out.read_text() == "precious\n"


def test_the_input_is_never_the_output(run, bundle: Path, tmp_path: Path) -> None:
    tickets = write_tickets(tmp_path / "in.jsonl", 3)
    (tmp_path / "link.jsonl").symlink_to(tickets)
    before = tickets.read_bytes()
    for name in ("in.jsonl", "link.jsonl"):
        outcome = run("classify", bundle, "-i", tickets, "-o", tmp_path / name, *LABELS, "--overwrite")
        assert (outcome.code, "is the input" in outcome.err) == (2, True)
    assert tickets.read_bytes() == before


def test_overwrite_is_remembered_by_the_journal(run, bundle: Path, tickets: Path, whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old\n")
    stop_midway(start(bundle, tickets, out, "--overwrite"), out, signal.SIGKILL)
    assert out.read_text() == "old\n"
    assert run("classify", bundle, "-i", tickets, "-o", out, *FLAGS, "--resume").code == 1
    assert out.read_bytes() == whole


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-o", "out.jsonl", "--resume"), "standard input"),
        (("-i", "in.jsonl", "--resume"), "regular file"),
        (("-i", "in.jsonl", "-o", "out.jsonl", "--resume", "--overwrite"), "one of them"),
    ],
)
def test_what_cannot_be_resumed_says_so(run, bundle: Path, tmp_path: Path, monkeypatch, argv, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_tickets(tmp_path / "in.jsonl", 3)
    outcome = run("classify", bundle, *LABELS, *argv)
    assert (outcome.code, message in outcome.err, len(outcome.err.splitlines())) == (2, True, 1)


def test_two_runs_do_not_write_one_output(run, bundle: Path, tickets: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    process = start(bundle, tickets, out)
    while not size_of(journal_of(out)):  # opened when the output's lock is held
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)  # until it has stopped
    recorded = size_of(journal_of(out))
    outcome = run("classify", bundle, "-i", tickets, "-o", out, *FLAGS, "--overwrite")
    assert size_of(journal_of(out)) == recorded
    process.send_signal(signal.SIGCONT)
    process.communicate()
    assert (outcome.code, "another slm-run is writing it" in outcome.err) == (2, True)
    assert len(out.read_text().splitlines()) == 200


def test_a_full_disk_keeps_what_is_done(bundle: Path, tickets: Path, whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    # Files may not grow beyond 20 kB: writing fails as on a full disk, with another reason.
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    command = [sys.executable, "-B", "-c", limit + RUN[2], "classify", bundle, "-i", tickets, "-o", out, *FLAGS]
    environment = os.environ | {"SLM_PREPACKED": "off"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert f"rows are kept in {journal_of(out)}; go on with --resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()
    process = start(bundle, tickets, out, "--resume")
    assert "rows are done already" in process.communicate()[1]
    assert out.read_bytes() == whole
