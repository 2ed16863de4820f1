"""slm-export from the outside: what it makes, and what it refuses."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_models import make_checkpoint

from slm_export.cli import main as slm_export
from slm_runtime.manifest import read_manifest


def export(run, *argv: object):
    return run(*argv, main=slm_export)


@pytest.mark.parametrize(("family", "tied"), [("qwen2", False), ("qwen3", True), ("llama", True), ("llama", False)])
def test_every_family_exports_verifies_and_classifies(run, tmp_path: Path, family, tied: bool) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", family, tied=tied)
    outcome = export(run, checkpoint, "--output", tmp_path / "bundle")
    assert outcome.code == 0, outcome.err
    manifest = read_manifest(tmp_path / "bundle")
    assert (manifest.lm_head is None) == tied
    assert [record.labels_equal for record in manifest.parity] == [record.num_tickets for record in manifest.parity]
    assert run("verify", tmp_path / "bundle").code == 0


def test_c16_the_tied_matrix_is_stored_once(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    vocabulary, width = np.load(bundle / manifest.embeddings.file, mmap_mode="r").shape
    graph = onnx.load(bundle / manifest.decoder.file, load_external_data=False).graph
    large = [t for t in graph.initializer if sorted(t.dims) == sorted((vocabulary, width))]
    assert not large, "the decoder graph holds neither the embedding nor the head"
    assert len(list(bundle.glob("*.npy"))) == 1


def test_c16_an_untied_head_is_kept_as_its_own_matrix(run, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "qwen2", tied=False)
    assert export(run, checkpoint, "--output", tmp_path / "bundle", "--no-verify").code == 0
    head, embedding = (np.load(tmp_path / "bundle" / name) for name in ("lm_head.npy", "embeddings.npy"))
    assert head.shape == embedding.shape
    assert not np.array_equal(head, embedding)


def test_an_existing_output_is_kept_unless_forced(run, checkpoint: Path, own_bundle: Path) -> None:
    before = (own_bundle / "manifest.json").read_bytes()
    outcome = export(run, checkpoint, "--output", own_bundle)
    assert (outcome.code, "--force" in outcome.err) == (2, True)
    assert (own_bundle / "manifest.json").read_bytes() == before
    assert export(run, checkpoint, "--output", own_bundle, "--force", "--no-verify").code == 0
    assert not list(own_bundle.parent.glob(".*")), "no temporary folder stays"


def test_force_does_not_replace_a_folder_that_is_no_bundle(run, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    outcome = export(run, checkpoint, "--output", tmp_path / "home", "--force")
    assert outcome.code == 2
    assert "is not a bundle" in outcome.err
    assert (tmp_path / "home" / "thesis.txt").exists()


def with_config(checkpoint: Path, folder: Path, **changes: object) -> Path:
    shutil.copytree(checkpoint, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"model_type": "unheard_of"}, "config.json"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotary scaling 'dynamic'"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "sliding_attention layers"),
        ({"auto_map": {"AutoConfig": "evil.Config"}}, "--trust-remote-code"),
    ],
)
def test_what_the_graph_cannot_express_is_refused(run, checkpoint: Path, tmp_path: Path, changes, message: str) -> None:
    folder = with_config(checkpoint, tmp_path / "changed", **changes)
    outcome = export(run, folder, "--output", tmp_path / "bundle")
    assert outcome.code == 2
    assert message in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["changed"], "nothing half-written"


@pytest.mark.parametrize(
    ("template", "code"), [("{{ ''.__class__.__mro__ }}", 4), ("{% for a in range(9) %}x{% endfor %}", 4)]
)
def test_c34_a_hostile_or_useless_template_stops_the_export_early(
    run, checkpoint: Path, tmp_path: Path, template: str, code: int
) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "changed"))
    (folder / "chat_template.jinja").write_text(template)
    outcome = export(run, folder, "--output", tmp_path / "bundle")
    assert outcome.code == code
    assert "chat template" in outcome.err
    assert not (tmp_path / "bundle").exists()


def test_a_disk_too_small_is_refused_before_anything_is_written(
    run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slm_export.resources.free_disk_bytes", lambda _: 1000)
    outcome = export(run, checkpoint, "--output", tmp_path / "bundle")
    assert outcome.code == 2
    assert "of disk" in outcome.err
    assert not list(tmp_path.iterdir())


def test_a_graph_that_differs_from_pytorch_gets_no_name(
    run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slm_export import decoder

    monkeypatch.setattr(decoder, "rms_norm", lambda norm, states: states * norm.weight)
    outcome = export(run, checkpoint, "--output", tmp_path / "bundle")
    assert outcome.code == 3
    assert "differs from PyTorch" in outcome.err
    assert not list(tmp_path.iterdir())


def test_list_names_every_catalogue_entry(run) -> None:
    outcome = export(run, "--list")
    assert outcome.code == 0
    assert {"qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct"} <= set(outcome.out.split())
