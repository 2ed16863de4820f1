"""--provider on a machine that has CoreML, driven by a fake one: what fails is noticed, remembered and told."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_coreml import COREML, Mac
from static_bundles import export_static

from slm_runtime.classifier import Classifier
from slm_runtime.coreml import admission, cache, child, strikes, versions
from slm_runtime.coreml.provider import provider_options
from slm_runtime.coreml.verdict import agrees, read_verdict
from slm_runtime.errors import ProviderError
from slm_runtime.manifest import GOLDEN_FILE, read_manifest
from slm_runtime.task import Task

REAL_COMMAND = child.probe_command
TASK = Task(labels=("billing", "technical", "account"))
LABELS = ("--labels", "billing,technical,account")
CHILD_FAILURES = {
    "crash": "crash: ended by SIGABRT",
    "hang": "timeout: no answer after",
    "nan": "not a number",
    "infinite": "not a number",
    "wrong": "mismatch",
    "raises": "no such MIL op",
    "run raises": "refused: CoreML cannot run it (Error executing model: -1)",
    "silent fallback": "instead of CoreMLExecutionProvider",
    "node fallback": "1 on CPUExecutionProvider",
    "no assignment": "none reported",
}


@pytest.fixture(scope="module")
def coreml_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One graph, so that every start tries out one."""
    return export_static(checkpoint, tmp_path_factory.mktemp("coreml") / "tiny", tokens=(128,))


@pytest.fixture(scope="module")
def two_graphs(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_static(checkpoint, tmp_path_factory.mktemp("coreml") / "two", tokens=(64, 128))


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mac:
    return Mac(monkeypatch, tmp_path)


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.csv"
    path.write_text("id,text\n1,I was charged twice\n2,the app crashes\n")
    return path


def strike_reasons(mac: Mac) -> list[str]:
    (path,) = mac.cache.rglob("strikes-*.json")
    return json.loads(path.read_text())["reasons"]


def compiled_folders(mac: Mac) -> list[Path]:
    return [path for path in mac.cache.glob("coreml/*/*") if path.is_dir()]


def test_a_first_start_tries_the_graph_out_in_a_child_and_a_second_one_uses_what_it_left(
    mac: Mac, coreml_bundle: Path
) -> None:
    first = Classifier.load(coreml_bundle, provider="coreml")
    tried, used = mac.take_opened()
    assert (tried["pid"] != os.getpid(), used["pid"] == os.getpid()) == (True, True)
    assert (tried["cached"], used["cached"]) == (False, True)
    assert first.decoder.provider == COREML
    assert first.classify(["help"], TASK)[0].error is None
    Classifier.load(coreml_bundle, provider="coreml")
    (again,) = mac.take_opened()
    assert (again["pid"], again["cached"]) == (os.getpid(), True)


@pytest.mark.parametrize(("precision", "units"), [("fp32", "CPUAndGPU"), ("fp16", "CPUAndNeuralEngine")])
def test_coreml_is_told_everything_that_matters(
    mac: Mac, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision, units: str
) -> None:
    folder = export_static(checkpoint, tmp_path / "both", tokens=(128,), precisions=("fp32", "fp16"))
    monkeypatch.setenv("SLM_COREML_PRECISION", precision)
    classifier = Classifier.load(folder, provider="coreml")
    assert classifier.decoder.precision == precision
    for entry in mac.take_opened():
        assert entry["graph"].endswith(f"{precision}.onnx")
        assert set(entry["settings"].values()) == {"1"}
        assert not entry["optimised"]
        options = entry["options"]
        assert Path(options.pop("ModelCacheDirectory")).is_relative_to(mac.cache)
        assert options == {
            "ModelFormat": "MLProgram",
            "MLComputeUnits": units,
            "RequireStaticInputShapes": "1",
            "AllowLowPrecisionAccumulationOnGPU": "0",
        }


def test_float32_is_the_default_and_an_unknown_precision_is_refused(
    mac: Mac, coreml_bundle: Path, monkeypatch: pytest.MonkeyPatch, run, tickets: Path
) -> None:
    assert Classifier.load(coreml_bundle, provider="coreml").decoder.precision == "fp32"
    monkeypatch.setenv("SLM_COREML_PRECISION", "fp16")
    outcome = run("classify", coreml_bundle, "-i", tickets, *LABELS, "--provider", "coreml")
    assert outcome.code == 2
    assert "fp32 only" in outcome.err


@pytest.mark.parametrize("failure", CHILD_FAILURES)
def test_every_failure_of_the_child_is_one_strike_and_the_documented_answer(
    mac: Mac, coreml_bundle: Path, run, tickets: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    monkeypatch.setattr(child, "TIMEOUT_S", 4.0 if failure == "hang" else 60.0)
    mac.fail(child=failure)
    outcome = run("classify", coreml_bundle, "-i", tickets, *LABELS, "--provider", "coreml")
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (4, "", 1)
    assert CHILD_FAILURES[failure] in outcome.err
    (reason,) = strike_reasons(mac)
    assert CHILD_FAILURES[failure] in reason
    assert compiled_folders(mac) == []

    outcome = run("classify", coreml_bundle, "-i", tickets, *LABELS, "--provider", "auto")
    assert (outcome.code, len(outcome.records)) == (0, 2)
    notices = [line for line in outcome.err.splitlines() if "CoreML" in line]
    assert len(notices) == 1
    assert "running on the CPU" in notices[0]
    assert CHILD_FAILURES[failure] in notices[0]
    assert len(strike_reasons(mac)) == 2


def test_after_the_last_strike_no_child_is_started_until_the_versions_change(mac: Mac, coreml_bundle: Path) -> None:
    mac.fail(child="nan")
    for _ in range(strikes.MAX_STRIKES):
        with pytest.raises(ProviderError, match="not a number"):
            Classifier.load(coreml_bundle, provider="coreml")
    assert len(mac.take_opened()) == strikes.MAX_STRIKES
    mac.fail()
    with pytest.raises(ProviderError, match="failed 2 times on this machine, last with not a number"):
        Classifier.load(coreml_bundle, provider="coreml")
    assert Classifier.load(coreml_bundle, provider="auto").decoder.provider == "CPUExecutionProvider"
    assert mac.take_opened() == []
    mac.fail(version="9.9.9")
    Classifier.load(coreml_bundle, provider="coreml")
    assert [entry["cached"] for entry in mac.take_opened()] == [False, True]


def test_a_new_build_of_macos_compiles_anew(mac: Mac, coreml_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Classifier.load(coreml_bundle, provider="coreml")
    monkeypatch.setattr(versions, "system_build", lambda: "24B83")
    mac.take_opened()
    Classifier.load(coreml_bundle, provider="coreml")
    assert [entry["cached"] for entry in mac.take_opened()] == [False, True]


def test_a_success_clears_the_strikes(mac: Mac, coreml_bundle: Path) -> None:
    mac.fail(child="wrong")
    with pytest.raises(ProviderError):
        Classifier.load(coreml_bundle, provider="coreml")
    assert len(strike_reasons(mac)) == 1
    mac.fail()
    Classifier.load(coreml_bundle, provider="coreml")
    assert not list(mac.cache.rglob("strikes-*.json"))


@pytest.mark.parametrize("damage", ['{"format": 2}', "{", '{"format": 1, "reasons": 3, "versions": {}}', ""])
def test_a_strike_file_that_cannot_be_read_counts_for_nothing(mac: Mac, coreml_bundle: Path, damage: str) -> None:
    mac.fail(child="wrong")
    with pytest.raises(ProviderError):
        Classifier.load(coreml_bundle, provider="coreml")
    (path,) = mac.cache.rglob("strikes-*.json")
    path.write_text(damage)
    mac.fail()
    assert Classifier.load(coreml_bundle, provider="coreml").decoder.provider == COREML


def test_a_graph_that_passed_and_does_not_open_any_more_is_a_strike_and_passes_anew(
    mac: Mac, coreml_bundle: Path
) -> None:
    Classifier.load(coreml_bundle, provider="coreml")
    mac.fail(parent="raises")
    with pytest.raises(ProviderError, match="no such MIL op"):
        Classifier.load(coreml_bundle, provider="coreml")
    assert len(strike_reasons(mac)) == 1
    assert compiled_folders(mac) == []
    mac.fail()
    mac.take_opened()
    Classifier.load(coreml_bundle, provider="coreml")
    assert [entry["cached"] for entry in mac.take_opened()] == [False, True]


def test_the_record_of_a_run_that_had_to_do_without_coreml_says_why(
    mac: Mac, coreml_bundle: Path, run, tickets: Path, tmp_path: Path
) -> None:
    Classifier.load(coreml_bundle, provider="coreml")
    mac.fail(parent="node fallback")
    output = tmp_path / "out.jsonl"
    assert run("classify", coreml_bundle, "-i", tickets, "-o", output, *LABELS, "--provider", "auto").code == 0
    record = json.loads((tmp_path / "out.jsonl.run.json").read_text())
    assert (record["provider"], record["graphs"]) == ("CPUExecutionProvider", [])
    assert "1 on CPUExecutionProvider" in record["refused_graphs"][0]


@pytest.mark.parametrize("failure", ["silent fallback", "node fallback", "no assignment"])
def test_auto_falls_back_with_one_notice_when_the_parent_session_is_not_on_coreml(
    mac: Mac, coreml_bundle: Path, failure: str
) -> None:
    mac.fail(parent=failure)
    said: list[str] = []
    assert Classifier.load(coreml_bundle, provider="auto", say=said.append).decoder.provider != COREML
    (notice,) = said
    assert CHILD_FAILURES[failure] in notice


def test_a_process_that_dies_while_it_opens_a_graph_leaves_a_strike(mac: Mac, coreml_bundle: Path) -> None:
    Classifier.load(coreml_bundle, provider="coreml")
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from fake_coreml import FakeOrt\n"
        "from slm_runtime.coreml import choice, provider, versions\n"
        "choice.ort = provider.ort = FakeOrt('crash')\n"
        "from slm_runtime.classifier import Classifier\n"
        "Classifier.load(sys.argv[1], provider='coreml')\n"
    )
    here = str(Path(__file__).parents[1] / "unit")
    for _ in range(strikes.MAX_STRIKES):
        died = subprocess.run([sys.executable, "-c", script, str(coreml_bundle), here], check=False)
        assert died.returncode == -signal.SIGABRT
    with pytest.raises(ProviderError, match="a process ended while it opened the graph"):
        Classifier.load(coreml_bundle, provider="coreml")
    retried = Classifier.load(coreml_bundle, provider="coreml", retry=True)
    assert retried.decoder.provider == COREML
    assert not list(mac.cache.rglob("opening-*"))


def test_a_process_that_opens_a_graph_just_now_is_no_strike(mac: Mac, coreml_bundle: Path) -> None:
    manifest = read_manifest(coreml_bundle)
    current = versions.current_versions("fp32", manifest.digest)
    (spec,) = manifest.coreml
    cache.versions_folder(current).mkdir(parents=True)
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = cache.versions_folder(current) / f"opening-{cache.graph_key(spec)}-{sleeper.pid}"
    mark.touch()
    try:
        assert strikes.read_strikes(current, spec).reasons == ()
    finally:
        sleeper.communicate()
    assert strikes.read_strikes(current, spec).reasons == (strikes.DIED_OPENING,)


def test_ctrl_c_while_a_graph_is_opened_is_no_strike(mac: Mac, coreml_bundle: Path) -> None:
    (spec,) = read_manifest(coreml_bundle).coreml
    current = versions.current_versions("fp32", "digest")
    cache.versions_folder(current).mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt), strikes.opening(current, spec):
        raise KeyboardInterrupt
    assert strikes.read_strikes(current, spec).reasons == ()
    assert not list(mac.cache.rglob("opening-*"))


def was_killed(pid: int) -> bool:
    """Whether a child of this process was, rather than ending by itself; waits for it."""
    try:
        return os.waitpid(pid, 0)[1] == signal.SIGKILL
    except ChildProcessError:  # someone asked before
        return True


def test_ctrl_c_while_the_child_works_ends_the_child_and_is_no_strike(
    mac: Mac, coreml_bundle: Path, run, tickets: Path
) -> None:
    mac.fail(child="hang")
    pids = []

    def interrupt() -> None:
        while not (mac.log.exists() and mac.log.read_text().endswith("\n")):
            time.sleep(0.05)
        pids.append(json.loads(mac.log.read_text())["pid"])
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        outcome = run("classify", coreml_bundle, "-i", tickets, *LABELS, "--provider", "coreml")
    assert (outcome.code, outcome.err) == (130, "slm-run: interrupted\n")
    assert was_killed(pids[0])
    assert not list(mac.cache.rglob("strikes-*"))
    assert compiled_folders(mac) == []


@pytest.mark.parametrize(
    ("failure", "reason"), [("raises:s128", "no such MIL op"), ("run raises:s128", "Error executing model: -1")]
)
def test_a_graph_that_fails_in_the_middle_of_a_run_names_the_way_on(
    mac: Mac, two_graphs: Path, run, tmp_path: Path, failure: str, reason: str
) -> None:
    assert run("verify", two_graphs, "--provider", "coreml").code == 0
    mac.fail(parent=failure)
    (tmp_path / "long.csv").write_text("text\n" + "I was charged twice " * 16 + "\n")
    outcome = run("classify", two_graphs, "-i", tmp_path / "long.csv", *LABELS, "--provider", "coreml")
    assert (outcome.code, len(outcome.err.splitlines())) == (4, 1)
    assert re.search(f"s128.*{reason}.*go on with --provider cpu", outcome.err)


def test_a_half_written_cache_folder_is_replaced(mac: Mac, coreml_bundle: Path) -> None:
    Classifier.load(coreml_bundle, provider="coreml")
    (folder,) = compiled_folders(mac)
    for content in ("", '{"outc', '{"outcome": "nan"}'):
        (folder / "verdict.json").write_text(content)
        mac.take_opened()
        Classifier.load(coreml_bundle, provider="coreml")
        assert [entry["cached"] for entry in mac.take_opened()] == [False, True]


def test_the_cache_gets_its_name_after_the_graph_passed_and_not_before(
    mac: Mac, coreml_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    run_probe = admission.run_probe

    def watched(folder: Path, spec, staged: Path, num_threads: int):
        verdict = run_probe(folder, spec, staged, num_threads)
        seen.append([path.name for path in compiled_folders(mac)])
        assert read_verdict(staged) == verdict
        return verdict

    monkeypatch.setattr(admission, "run_probe", watched)
    Classifier.load(coreml_bundle, provider="coreml")
    ((staged,),) = seen
    assert staged.startswith(cache.STAGING_PREFIX)
    (folder,) = compiled_folders(mac)
    assert not folder.name.startswith(cache.STAGING_PREFIX)
    assert read_verdict(folder).nodes.keys() == {COREML}


def test_folders_of_dead_processes_and_of_old_versions_go_away(
    mac: Mac, coreml_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for build in ("A", "B", "C", "D"):
        monkeypatch.setattr(versions, "system_build", lambda build=build: build)
        Classifier.load(coreml_bundle, provider="coreml")
    assert len(list((mac.cache / "coreml").iterdir())) == cache.KEPT_VERSIONS
    (folder,) = (p.parent for p in compiled_folders(mac) if p.parent.name == _key(coreml_bundle))
    old, young = folder / "new-old", folder / "new-young"
    for path in (old, young):
        path.mkdir()
    os.utime(old, (time.time() - 2 * cache.ABANDONED_AFTER_S,) * 2)
    (spec,) = read_manifest(coreml_bundle).coreml
    cache.CompiledCache(versions.current_versions("fp32", read_manifest(coreml_bundle).digest), spec).stage()
    assert (old.exists(), young.exists()) == (False, True)


def _key(bundle: Path) -> str:
    return versions.current_versions("fp32", read_manifest(bundle).digest).key


def test_two_processes_at_once_both_get_there_and_leave_one_folder(mac: Mac, coreml_bundle: Path) -> None:
    """Both compile, because neither finds anything; the slower one's folder goes."""
    manifest = read_manifest(coreml_bundle)
    current = versions.current_versions("fp32", manifest.digest)

    def admitted(_: int):
        return admission.admit(
            coreml_bundle, manifest.coreml, current, num_threads=1, retry=False, progress=lambda _: None
        )

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(admitted, range(2)))
    assert [result[0].verdict.outcome for result in results] == ["passed", "passed"]
    assert len(compiled_folders(mac)) == 1


def test_publishing_after_another_process_keeps_its_folder(mac: Mac, coreml_bundle: Path) -> None:
    Classifier.load(coreml_bundle, provider="coreml")
    (folder,) = compiled_folders(mac)
    (folder / "theirs").touch()
    (spec,) = read_manifest(coreml_bundle).coreml
    place = cache.CompiledCache(versions.current_versions("fp32", read_manifest(coreml_bundle).digest), spec)
    staged = place.stage()
    (staged / "ours").touch()
    place.publish(staged)
    assert (folder / "theirs").exists()
    assert compiled_folders(mac) == [folder]


def test_a_cache_that_cannot_be_written_is_told_and_is_no_strike(
    mac: Mac, coreml_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ProviderError, match="cache folder cannot be written"):
        Classifier.load(coreml_bundle, provider="coreml")
    assert mac.take_opened() == []


def test_graphs_that_failed_are_left_out_and_the_others_are_used(mac: Mac, two_graphs: Path) -> None:
    mac.fail(child="crash:s128")
    said: list[str] = []
    classifier = Classifier.load(two_graphs, provider="coreml", say=said.append)
    assert [bucket.num_tokens for bucket in classifier.decoder.room.buckets] == [64]
    assert "SIGABRT" in said[0]
    assert classifier.classify(["help"], TASK)[0].error is None


def test_auto_without_coreml_or_without_its_graphs_is_quietly_the_cpu(
    mac: Mac, bundle: Path, coreml_bundle: Path, run, tickets: Path
) -> None:
    for folder, failure in ((bundle, ""), (coreml_bundle, "missing")):
        mac.fail(parent=failure)
        outcome = run("classify", folder, "-i", tickets, *LABELS, "--provider", "auto")
        assert outcome.code == 0
        assert "CoreML" not in outcome.err
    assert mac.take_opened() == []


def refused(run, bundle: Path, tickets: Path) -> str:
    outcome = run("classify", bundle, "-i", tickets, *LABELS, "--provider", "coreml")
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (4, "", 1)
    return outcome.err


@pytest.mark.parametrize(("platform", "provider"), [("darwin", "auto"), ("linux", "cpu")])
def test_auto_is_the_default_on_macos_only(platform: str, provider: str) -> None:
    script = (
        f"import sys; sys.platform = {platform!r}\n"
        "from slm_runtime.cli import slm_run\n"
        "for name in ('classify', 'bench', 'tune', 'verify'):\n"
        "    print(*(p.default for p in slm_run.commands[name].params if p.name == 'provider'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [provider] * 4


def test_a_bundle_without_coreml_graphs_names_the_export_that_makes_them(mac: Mac, bundle: Path, run, tickets) -> None:
    assert "slm-export --profile coreml" in refused(run, bundle, tickets)


def test_a_bundle_without_golden_tickets_cannot_be_tried_out(
    mac: Mac, coreml_bundle: Path, run, tickets: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(coreml_bundle, tmp_path / "bundle"))
    (folder / GOLDEN_FILE).unlink()
    assert "without --no-verify" in refused(run, folder, tickets)


def test_an_onnxruntime_that_is_too_old_is_refused(mac: Mac, coreml_bundle: Path, run, tickets: Path) -> None:
    mac.fail(version="1.24.0")
    assert "needs onnxruntime 1.24.1" in refused(run, coreml_bundle, tickets)


def test_c38_asking_for_coreml_where_there_is_none_ends_before_anything_is_read(run, tmp_path: Path) -> None:
    """Neither bundle nor input exist: had one of them been looked at, the message would be another."""
    for command in ("classify", "verify", "bench"):
        more = ("-i", tmp_path / "none.csv", *LABELS) if command == "classify" else ()
        outcome = run(command, tmp_path / "none", *more, "--provider", "coreml")
        assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (4, "", 1)
        assert "coreml is not in this onnxruntime" in outcome.err


def test_the_real_child_on_a_machine_without_coreml_says_so(mac: Mac, coreml_bundle: Path, tmp_path: Path) -> None:
    """The command line as it is used on a Mac, with the real onnxruntime, which alone would only warn."""
    (spec,) = read_manifest(coreml_bundle).coreml
    command = REAL_COMMAND(coreml_bundle, spec, tmp_path, 1)
    done = subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert done.stdout == b""
    verdict = read_verdict(tmp_path)
    assert verdict.outcome == "refused"
    assert "fallback to CPU EP has been explicitly disabled" in verdict.detail


def test_the_run_record_says_what_ran_where(mac: Mac, two_graphs: Path, run, tickets: Path, tmp_path: Path) -> None:
    mac.fail(child="crash:s128")
    output = tmp_path / "out.jsonl"
    outcome = run("classify", two_graphs, "-i", tickets, "-o", output, *LABELS, "--provider", "coreml")
    assert outcome.code == 0
    record = json.loads((tmp_path / "out.jsonl.run.json").read_text())
    assert (record["provider"], record["precision"]) == (COREML, {"labels_by": "fp32"})
    (graph,) = record["graphs"]
    assert (graph["tokens"], graph["past"]) == (64, 64)
    assert graph["calls"] >= 2
    assert (graph["nodes"].keys(), graph["partitions"]) == ({COREML}, 1)
    (refusal,) = record["refused_graphs"]
    assert re.search(r"s128.*SIGABRT", refusal)


def test_verify_tells_a_mac_owner_everything_and_tries_again_what_failed(mac: Mac, two_graphs: Path, run) -> None:
    mac.fail(child="crash")
    for _ in range(strikes.MAX_STRIKES):
        assert run("verify", two_graphs, "--provider", "auto").code == 0
    mac.fail()
    outcome = run("verify", two_graphs, "--provider", "coreml")
    assert (outcome.code, outcome.err) == (0, "")
    for expected in (
        "machine: ",
        COREML,
        "coreml: fp32, compute units CPUAndGPU, system ",
        f"nodes on {COREML} in 1 partition(s); ",
        "golden labels equal",
        "(tolerance 1e-02)",
        "calls: ",
        "please report",
        "verified",
    ):
        assert expected in outcome.out


def test_verify_of_wrong_numbers_is_a_provider_error(mac: Mac, coreml_bundle: Path, run) -> None:
    mac.fail(child="wrong")
    outcome = run("verify", coreml_bundle, "--provider", "coreml")
    assert outcome.code == 4
    assert "mismatch" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_numbers_that_turn_wrong_after_the_graph_passed_fail_verify(mac: Mac, coreml_bundle: Path, run) -> None:
    mac.fail(parent="wrong")
    outcome = run("verify", coreml_bundle, "--provider", "coreml")
    assert outcome.code == 3
    assert "does not reproduce the reference" in outcome.err


def test_c38_rows_of_a_graph_that_turned_to_nan_fail_and_the_run_says_so(
    mac: Mac, coreml_bundle: Path, run, tickets: Path
) -> None:
    mac.fail(parent="nan")
    outcome = run("classify", coreml_bundle, "-i", tickets, *LABELS, "--provider", "coreml", "--scoring", "sequence")
    assert outcome.code == 1
    assert all(record["label"] is None and "not a finite number" in record["error"] for record in outcome.records)
    assert "RuntimeWarning" not in outcome.err


@pytest.mark.parametrize(
    ("precision", "equal", "worst", "expected"),
    [
        ("fp32", 10, 0.009, True),
        ("fp32", 9, 0.009, False),
        ("fp32", 10, 0.011, False),
        ("fp16", 9, 0.09, True),
        ("fp16", 10, 0.11, False),
        ("fp16", 10, float("nan"), False),
        ("fp32", 10, float("inf"), False),
    ],
)
def test_float16_may_decide_a_near_tie_otherwise_and_nothing_else(
    precision, equal: int, worst: float, *, expected: bool
) -> None:
    assert agrees(precision, 10, equal, worst) is expected


def test_provider_options_name_no_relative_cache() -> None:
    assert Path(provider_options("fp32", Path("cache"))["ModelCacheDirectory"]).is_absolute()
