"""Jobs on a Ray cluster of two CPUs on this machine, which all tests of the module share."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slm_runtime.ray_engine.cluster import import_ray

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is an extra")
RUN = [sys.executable, "-c", "import sys; from slm_runtime.cli import main; sys.exit(main())"]
BANKING77 = Path(__file__).parents[1] / "data" / "banking77" / "sample.csv"
LABELS = ("--labels", "card,transfer,exchange rate,top up")
ON_RAY = (*LABELS, "--engine", "ray", "--concurrency", "2")
# One ticket after the other: slow enough to be stopped midway.
SLOWLY = ("--strategy", "item", "--no-dedupe", "--no-prefix-cache")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster that this process is connected to."""
    import_ray(None)
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200_000_000,
        logging_level="critical",
        log_to_driver=False,
    )
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    import csv

    with BANKING77.open(encoding="utf-8", newline="") as stream:
        return [row["text"] for row in csv.DictReader(stream)]


def write_jsonl(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"{path.stem}-{row}", "text": text} for row, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_folder(folder: Path, texts: list[str], num_files: int) -> list[str]:
    names = [f"t{number}.jsonl" for number in range(num_files)]
    for number, name in enumerate(names):
        write_jsonl(folder / name, texts[number:] + texts[:number])
    return names


def read_records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def assert_equal_rows(part: list[dict], local: list[dict]) -> None:
    """Everything equal, and floats to 1e-5."""
    assert len(part) == len(local)
    for ours, theirs in zip(part, local, strict=True):
        numbers = ("score", "margin", "scores", "label_mass")
        assert {key: ours[key] for key in ours if key not in numbers} == {
            key: theirs[key] for key in theirs if key not in numbers
        }
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-5)
        for key in ("score", "label_mass"):
            assert ours[key] == pytest.approx(theirs[key], abs=1e-5), key


def local_records(run, bundle: Path, path: Path) -> list[dict]:
    return run("classify", bundle, "-i", path, *LABELS, "--threads", 2).records


def workers_of_this_process() -> list[psutil.Process]:
    """The actors that label, among the processes that this one has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if title.startswith("ray::") and "_Label" in title:
            found.append(process)
    return found


def finished_parts(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("*.jsonl"))


def test_every_format_and_every_damage_in_one_folder(
    run, cluster: str, bundle: Path, texts: list[str], tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_jsonl(folder / "a.jsonl", [*texts[:90], " ", *texts[:10]])
    (folder / "2024").mkdir()
    table = pa.table({"id": list(range(50)), "text": [*texts[:49], None]})
    pq.write_table(table, folder / "2024" / "b.parquet")
    (folder / "c.csv").write_text("text,id\n" + "".join(f'"{text}",{row}\n' for row, text in enumerate(texts[:40])))
    (folder / "header.csv").write_text("id,text\n")
    (folder / "none.jsonl").write_text("")
    (folder / "damaged.csv").write_text('id,text\n1,fine\n2,"never closed\n')
    (folder / "damaged.parquet.tmp").write_text("left out")
    (folder / "torn.parquet").write_bytes((folder / "2024" / "b.parquet").read_bytes()[:200])
    outcome = run("classify", bundle, "-i", folder, "-o", out, *ON_RAY)
    assert outcome.code == 1, outcome.err
    parts = {"a.jsonl": "a.jsonl", "2024/b.jsonl": "2024/b.parquet", "c.jsonl": "c.csv"}
    parts |= {"header.jsonl": "header.csv", "none.jsonl": "none.jsonl"}
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.jsonl")) == sorted(parts)
    for part, name in parts.items():
        assert_equal_rows(read_records(out / part), local_records(run, bundle, folder / name))
    assert "damaged.csv: quote opened on line 3 never closed" in outcome.err
    assert "torn.parquet: cannot be read" in outcome.err
    assert "Traceback" not in outcome.err
    record = json.loads((tmp_path / "out.run.json").read_text())
    assert (record["counts"]["rows"], record["counts"]["errors"]) == (101 + 50 + 40, 2)
    assert sum(record["counts"]["labels"].values()) == 101 + 50 + 40 - 2
    assert sorted(record["failed"]) == ["damaged.csv", "torn.parquet"]
    assert record["input"]["files"] == 7
    assert record["workers"]["threads"] == 1


def test_a_worker_that_is_killed_costs_nothing(
    run, cluster: str, bundle: Path, texts: list[str], tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    names = write_folder(folder, texts, 6)
    killed: list[tuple[int, int]] = []  # which process, and how many parts there were

    def kill_one() -> None:
        while not finished_parts(out):
            time.sleep(0.005)
        victim = workers_of_this_process()[0]
        victim.kill()
        killed.append((victim.pid, len(finished_parts(out))))

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    outcome = run("classify", bundle, "-i", folder, "-o", out, *ON_RAY, *SLOWLY)
    killer.join(10)
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert "raylet" not in outcome.err
    ((pid, parts_then),) = killed
    assert not psutil.pid_exists(pid)
    assert parts_then < len(names)
    assert finished_parts(out) == names
    for name in names:
        assert_equal_rows(read_records(out / name), local_records(run, bundle, folder / name))
    record = json.loads((tmp_path / "out.run.json").read_text())
    assert record["counts"]["rows"] == len(names) * len(texts)
    assert record["counts"]["errors"] == 0


def test_ctrl_c_keeps_whole_parts_and_resume_makes_the_others(
    run, cluster: str, bundle: Path, texts: list[str], tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    names = write_folder(folder, texts, 8)
    argv = ("classify", bundle, "-i", folder, "-o", out, *ON_RAY)
    command = [*RUN, *map(str, argv), *SLOWLY, "--ray-address", cluster]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not finished_parts(out):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    write_jsonl(folder / "late.jsonl", texts[:5])
    second = run(*argv, "--overwrite")
    assert (second.code, "another slm-run is writing it" in second.err) == (2, True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert len(err.splitlines()) == 1
    done = finished_parts(out)
    assert 0 < len(done) < len(names)
    assert f"{len(done)} of 8 parts are in" in err
    assert "go on with --resume" in err
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    before = {name: (out / name).stat().st_mtime_ns for name in done}

    assert "continue it with --resume" in run(*argv).err
    other = run("classify", bundle, "-i", folder, "-o", out, *ON_RAY, "--resume", "--output-format", "csv")
    assert (other.code, "output format was jsonl, is csv" in other.err) == (2, True)

    outcome = run(*argv, "--resume")
    assert outcome.code == 0, outcome.err
    assert f"resuming: {len(done)} of 8 parts" in outcome.err
    assert "1 files came after this run was started" in outcome.err
    assert finished_parts(out) == names
    assert {name: (out / name).stat().st_mtime_ns for name in done} == before
    for name in names:
        assert_equal_rows(read_records(out / name), local_records(run, bundle, folder / name))
    assert json.loads((tmp_path / "out.run.json").read_text())["counts"]["rows"] == 8 * len(texts)
    again = run(*argv, "--resume")
    assert (again.code, "complete already" in again.err) == (0, True)


def test_more_workers_than_rows_and_a_second_run_with_the_same_bytes(
    run, cluster: str, bundle: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_jsonl(folder / "one.jsonl", ["my card"])
    write_jsonl(folder / "old.jsonl", ["another"])
    argv = (
        "classify",
        bundle,
        "-i",
        f"file://{folder}/*.jsonl",
        "-o",
        f"file://{out}",
        *ON_RAY,
        "--output-format",
        "parquet",
    )
    assert run(*argv).code == 0
    before = (out / "one.parquet").read_bytes()
    assert pq.read_table(out / "one.parquet").num_rows == 1
    (folder / "old.jsonl").unlink()
    assert run(*argv, "--overwrite").code == 0
    assert (out / "one.parquet").read_bytes() == before
    assert sorted(path.name for path in out.iterdir()) == ["_slm_run.json", "one.parquet"]


def test_without_an_address_the_cluster_ends_with_the_command(bundle: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", ["my card", "a transfer"])
    argv = ["classify", bundle, "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out", *ON_RAY]
    environment = os.environ | {"SLM_TEST_MARK": str(tmp_path)}
    done = subprocess.run([*RUN, *map(str, argv)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "2 rows of 1 files, 0 files failed" in done.stderr
    assert done.stdout == ""
    deadline = time.monotonic() + 10
    while left := [process.pid for process in psutil.process_iter() if is_marked(process, str(tmp_path))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("SLM_TEST_MARK") == mark
    except psutil.Error:
        return False
