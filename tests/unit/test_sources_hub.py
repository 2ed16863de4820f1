"""Hub ids, against a fake hub on the loopback interface."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_files import tiny_checkpoint_files
from fake_hub import FakeHub

from slm_export.sources import DEFAULT_MODEL, PINNED_REVISIONS, resolve
from slm_runtime.errors import ResourceError, SourceError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
UNWANTED = {"pytorch_model.bin": b"pickle", "modeling_tiny.py": b"code", "onnx/model.json": b"{}"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub("org/tiny", COMMIT, tiny_checkpoint_files() | UNWANTED) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def test_branch_becomes_a_commit_and_only_wanted_files_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    checkpoint = resolve("org/tiny", cache_dir=tmp_path)
    assert (checkpoint.revision, checkpoint.kind, checkpoint.licence) == (COMMIT, "hub", "Apache-2.0")
    assert {path.name for path in checkpoint.folder.rglob("*")} == set(tiny_checkpoint_files())


def test_default_model_is_asked_for_at_its_pinned_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pinned = PINNED_REVISIONS[DEFAULT_MODEL]
    with FakeHub(DEFAULT_MODEL, pinned, tiny_checkpoint_files()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        assert resolve(DEFAULT_MODEL, cache_dir=tmp_path).revision == pinned
    assert hub.requests[0] == f"/api/models/{DEFAULT_MODEL}/revision/{pinned}"


def test_cached_commit_asks_the_hub_nothing(hub: FakeHub, tmp_path: Path) -> None:
    first = resolve("org/tiny", revision=COMMIT, cache_dir=tmp_path)
    hub.requests.clear()
    assert resolve("org/tiny", revision=COMMIT, cache_dir=tmp_path) == first
    assert resolve("org/tiny", revision=COMMIT, cache_dir=tmp_path, offline=True) == first
    assert hub.requests == []


def test_unreachable_hub_falls_back_to_a_cached_branch_and_says_so(hub: FakeHub, tmp_path: Path) -> None:
    first = resolve("org/tiny", cache_dir=tmp_path)
    hub.stop()
    said: list[str] = []
    assert resolve("org/tiny", cache_dir=tmp_path, say=said.append) == first
    assert said == [f"org/tiny: the hub cannot be reached, using commit {COMMIT} from the cache"]


def test_interrupted_download_is_completed(hub: FakeHub, tmp_path: Path) -> None:
    folder = resolve("org/tiny", revision=COMMIT, cache_dir=tmp_path).folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="no weights"):
        resolve("org/tiny", revision=COMMIT, cache_dir=tmp_path, offline=True)
    assert (resolve("org/tiny", revision=COMMIT, cache_dir=tmp_path).folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((404, "RepoNotFound"), "no such repository"),
        ((404, "RevisionNotFound"), "no revision 'main'"),
        ((403, "GatedRepo"), "gated.*HF_TOKEN"),
        ((503, ""), r"cannot be reached \(HTTP 503\).*qwen2\.5-coder-0\.5b-instruct, smollm2-135m-instruct"),
    ],
)
def test_refusals_of_the_hub_are_told_apart(
    hub: FakeHub, tmp_path: Path, refusal: tuple[int, str], message: str
) -> None:
    hub.refusal = refusal
    with pytest.raises(SourceError, match=message):
        resolve("org/tiny", cache_dir=tmp_path)
    assert len(hub.requests) == 1


def test_unreachable_hub_is_one_quick_quiet_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        started = time.perf_counter()
        with pytest.raises(SourceError, match=r"cannot be reached.*smollm2-135m-instruct") as caught:
            resolve("org/tiny", cache_dir=tmp_path)
    assert time.perf_counter() - started < 10
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_offline_without_a_cache_names_the_way_out(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"not in the cache.*smollm2-135m-instruct"):
        resolve("org/tiny", cache_dir=tmp_path, offline=True)
    assert hub.requests == []


def test_c34_code_on_the_hub_is_refused_before_the_weights_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["config.json"] = b'{"auto_map": {"AutoConfig": "modeling_tiny.Tiny"}}'
    with pytest.raises(SourceError, match=r"config\.json: auto_map.*--trust-remote-code"):
        resolve("org/tiny", cache_dir=tmp_path)
    assert not any(path.endswith((".safetensors", ".py")) for path in hub.requests)
    trusted = resolve("org/tiny", cache_dir=tmp_path, trust_remote_code=True)
    assert (trusted.folder / "modeling_tiny.py").is_file()


def test_pickled_weights_are_refused_from_the_listing(hub: FakeHub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(SourceError, match=r"org/tiny at 0123.*only pytorch_model\.bin, a pickle"):
        resolve("org/tiny", cache_dir=tmp_path)
    assert len(hub.requests) == 1


def test_full_disk_is_found_before_the_first_file(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slm_export.resources.free_disk_bytes", lambda path: 10)
    with pytest.raises(ResourceError, match=r"fetching org/tiny needs .* of disk"):
        resolve("org/tiny", cache_dir=tmp_path)
    assert len(hub.requests) == 1
