"""MODEL argument to checkpoint folder: local folders, and what is refused in every source."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_files import tiny_checkpoint_files

from slm_export.sources import Checkpoint, resolve
from slm_runtime.errors import SourceError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    path.mkdir()
    for name, content in tiny_checkpoint_files().items():
        (path / name).write_bytes(content)
    return path


def test_folder_is_used_where_it_is(folder: Path) -> None:
    assert resolve(str(folder)) == Checkpoint(folder, "tiny", None, "folder", "Apache-2.0")


def test_c33_links_into_a_cache_are_a_checkpoint_too(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    assert resolve(str(linked)).folder == linked
    (folder / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="no weights"):
        resolve(str(linked))


def _pickles_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _second_shard_missing(folder: Path) -> None:
    weight_map = {"a": "model.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), r"config\.json: holds a JSON list"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json: not readable as JSON"),
        (_pickles_only, r"only pytorch_model\.bin, a pickle"),
        (_cut_short, r"model\.safetensors: damaged or cut short"),
        (_second_shard_missing, r"model-2\.safetensors is missing"),
        pytest.param(
            lambda folder: (folder / "tokenizer.json").unlink(),
            r"no tokenizer\.json.*save_pretrained",
            id="c18_d",
        ),
        pytest.param(
            lambda folder: (folder / "tokenizer_config.json").unlink(),
            r"no chat template.*chat_template",
            id="c18_c",
        ),
    ],
)
def test_c18_unusable_folder_names_what_is_wrong(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(SourceError, match=message):
        resolve(str(folder))


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_c18_a_template_in_a_file_of_its_own_is_enough(folder: Path, name: str) -> None:
    (folder / "tokenizer_config.json").unlink()
    (folder / name).write_text("{}", encoding="utf-8")
    assert resolve(str(folder)).folder == folder


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_c34_code_in_a_local_folder_is_refused_unless_trusted(folder: Path, name: str) -> None:
    marker = folder / "marker"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')", encoding="utf-8")
    config = json.loads((folder / name).read_bytes()) | {"auto_map": {"AutoConfig": "evil.Evil"}}
    (folder / name).write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SourceError, match=rf"/{name}: auto_map.*--trust-remote-code"):
        resolve(str(folder))
    assert resolve(str(folder), trust_remote_code=True).folder == folder
    assert not marker.exists()


@pytest.mark.parametrize("model", ["qwen2.5-codr", "./missing", "a/b/c", "missing/model.gguf"])
def test_unknown_model_lists_the_catalogue(model: str) -> None:
    with pytest.raises(SourceError, match=r"no such folder.*smollm2-135m-instruct"):
        resolve(model)


def test_revision_without_a_hub_id_is_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match="--revision main belongs to a hub id"):
        resolve(str(folder), revision="main")


def test_file_of_another_kind_is_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"not a \.gguf one"):
        resolve(str(folder / "config.json"))
