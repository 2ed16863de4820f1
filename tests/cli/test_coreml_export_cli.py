"""slm-export --profile coreml, and the two commands that judge what it makes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from slm_export.cli import main as slm_export
from slm_export.coreml_check import main as coreml_check
from slm_export.coreml_fp16 import main as coreml_fp16
from slm_export.static_profile import StaticProfile
from slm_runtime.errors import SourceError
from slm_runtime.manifest import MANIFEST_FILE, read_manifest

SMALL = ("--profile", "coreml", "--precision", "fp32", "--precision", "fp16", "--coreml-tokens", "160")


@pytest.fixture(scope="module")
def coreml_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coreml") / "tiny"
    assert slm_export([str(checkpoint), "--output", str(folder), *SMALL, "--coreml-past", "23"]) == 0
    return folder


def test_the_profile_adds_its_graphs_to_those_of_the_cpu(coreml_bundle: Path, bundle: Path) -> None:
    manifest = read_manifest(coreml_bundle)
    names = ["decoder-coreml-s160-p64-fp32.onnx", "decoder-coreml-s160-p64-fp16.onnx"]
    assert [graph.file for graph in manifest.coreml] == names
    assert [(graph.num_tokens, graph.past_len) for graph in manifest.coreml] == [(160, 64)] * 2
    new = {*names, "final_norm.npy", "inverse_frequencies.npy"}
    assert set(manifest.files) == set(read_manifest(bundle).files) | new
    assert len(manifest.parity) == 3
    large, small = ((coreml_bundle / name).stat().st_size for name in names)
    assert small < large


def test_a_bundle_of_the_cpu_alone_has_no_such_graph(bundle: Path) -> None:
    assert read_manifest(bundle).coreml == ()


def test_c38_no_axis_of_any_value_is_empty(coreml_bundle: Path) -> None:
    for graph in read_manifest(coreml_bundle).coreml:
        assert all(0 not in dims for dims in graph.shapes().values())


def test_float16_without_the_profile_is_a_usage_error(run, checkpoint: Path, tmp_path: Path) -> None:
    outcome = run(checkpoint, "--output", tmp_path / "b", "--precision", "fp16", main=slm_export)
    assert (outcome.code, "--profile coreml" in outcome.err) == (2, True)


def test_disk_is_counted_for_every_graph(run, checkpoint: Path, tmp_path: Path, monkeypatch) -> None:
    needs = []
    monkeypatch.setattr("slm_export.bundle.require_room", lambda path, disk, memory, what: needs.append((disk, memory)))
    for flags in ((), SMALL):
        assert run(checkpoint, "--output", tmp_path / "b", "--force", "--no-verify", *flags, main=slm_export).code == 0
    (plain, with_graphs), graphs = needs, read_manifest(tmp_path / "b").coreml
    files = sum((tmp_path / "b" / graph.file).stat().st_size for graph in graphs)
    assert with_graphs[0] - plain[0] == pytest.approx(files, rel=0.5)
    assert with_graphs[1] == plain[1]


@pytest.mark.parametrize(("precision", "damage"), [("fp32", 1.01), ("fp16", 3.0)])
def test_a_static_graph_that_differs_from_pytorch_gets_no_name(
    run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, damage: float
) -> None:
    from slm_export import coreml_graph

    folded = coreml_graph._folded
    monkeypatch.setattr(coreml_graph, "_folded", lambda weight, columns, scale: folded(weight, columns, scale * damage))
    flags = ("--profile", "coreml", "--precision", precision, "--coreml-tokens", "256")
    outcome = run(checkpoint, "--output", tmp_path / "bundle", *flags, main=slm_export)
    assert outcome.code == 3
    assert f"decoder-coreml-s256-p256-{precision}.onnx: differs from PyTorch" in outcome.err
    assert not list(tmp_path.iterdir())


def test_past_lengths_are_rounded_up_and_every_combination_comes_once() -> None:
    profile = StaticProfile.of_options(["fp16", "fp32"], [128, 64, 64], [1, 64, 65])
    assert profile.past_lens == (64, 128)
    assert profile.sizes == [(p, s, past) for p in ("fp32", "fp16") for s in (64, 128) for past in (64, 128)]


def test_a_graph_too_large_for_one_file_is_refused_with_the_way_out() -> None:
    StaticProfile(("fp16",)).require_small_graphs(900_000_000)
    with pytest.raises(SourceError, match=r"3\.6 GB of weights in fp32.*--precision fp16"):
        StaticProfile(("fp32",)).require_small_graphs(900_000_000)


def test_the_check_passes_and_says_so_for_every_graph_and_version(run, coreml_bundle: Path) -> None:
    outcome = run(coreml_bundle, main=coreml_check)
    assert outcome.code == 0, outcome.out
    lines = outcome.out.splitlines()
    assert len(lines) == 3
    for line in lines[:2]:
        assert "1.24.4: 0 refused, 1 partition(s); 1.32.0: 0 refused, 1 partition(s); 0 policy findings" in line


def test_the_check_of_a_graph_that_leaves_coreml_fails_and_names_the_node(run, coreml_bundle: Path) -> None:
    spec = read_manifest(coreml_bundle).coreml[0]
    path = coreml_bundle / spec.file
    before = path.read_bytes()
    model = onnx.load(path)
    node = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    node.op_type = "HardSigmoid"
    onnx.save(model, path)
    try:
        outcome = run(coreml_bundle, "--onnxruntime", "1.30.1", main=coreml_check)
    finally:
        path.write_bytes(before)
    assert outcome.code == 3
    assert f"onnxruntime 1.30.1: {node.name} (HardSigmoid): the provider has no such operator" in outcome.out
    assert "2 partition(s)" in outcome.out


def test_the_check_of_a_file_that_is_no_graph_says_so(run, coreml_bundle: Path) -> None:
    path = coreml_bundle / read_manifest(coreml_bundle).coreml[0].file
    before = path.read_bytes()
    path.write_bytes(b"not a graph")
    try:
        outcome = run(coreml_bundle, main=coreml_check)
    finally:
        path.write_bytes(before)
    assert (outcome.code, "cannot be read as a graph" in outcome.err) == (4, True)


@pytest.mark.parametrize("version", ["1.23.2", "newest", ""])
def test_versions_without_rules_are_refused(run, coreml_bundle: Path, version: str) -> None:
    outcome = run(coreml_bundle, "--onnxruntime", version, main=coreml_check)
    assert (outcome.code, "1.24.1" in outcome.err) == (2, True)


@pytest.mark.parametrize("main", [coreml_check, coreml_fp16])
def test_a_bundle_without_the_graphs_is_refused_with_the_flag_that_makes_them(run, bundle: Path, main) -> None:
    outcome = run(bundle, main=main)
    assert outcome.code == 2
    assert "--profile coreml" in outcome.err


def test_the_fp16_report_names_the_largest_tensors_and_compares_answers(
    run, coreml_bundle: Path, tmp_path: Path
) -> None:
    outcome = run(coreml_bundle, "--limit", "6", "--json", tmp_path / "r.json", main=coreml_fp16)
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "r.json").read_text())
    for answers in (report["cached"], report["whole"]):
        assert answers["tickets"] + answers["left_out"] == 6
        assert answers["tickets"] >= 4
        assert 0 < answers["max_logprob_diff"] < 0.3
    assert report["overflowed"] == []
    names = [found["name"] for found in report["largest"]]
    assert "mask" in names
    assert "hidden_out" in names
    assert "0 tensors overflow" in outcome.out


def test_the_fp16_report_of_states_that_overflow_fails_and_names_them(run, coreml_bundle: Path, tmp_path: Path) -> None:
    """A last layer whose MLP writes what float16 cannot hold."""
    manifest = read_manifest(coreml_bundle)
    spec = next(graph for graph in manifest.coreml if graph.precision == "fp16")
    path = coreml_bundle / spec.file
    before = path.read_bytes(), (coreml_bundle / MANIFEST_FILE).read_text()
    model = onnx.load(path)
    weight = next(t for t in model.graph.initializer if t.name == "layer_2_down_weight")
    values = onnx.numpy_helper.to_array(weight).copy()
    weight.CopyFrom(onnx.numpy_helper.from_array((np.sign(values) * 3e4).astype(np.float16), weight.name))
    onnx.save(model, path)
    record = dataclasses.replace(manifest.files[spec.file], **record_of(path))
    changed = dataclasses.replace(manifest, files={**manifest.files, spec.file: record})
    (coreml_bundle / MANIFEST_FILE).write_text(changed.to_json())
    try:
        outcome = run(coreml_bundle, "--limit", "2", "--json", tmp_path / "r.json", main=coreml_fp16)
    finally:
        path.write_bytes(before[0])
        (coreml_bundle / MANIFEST_FILE).write_text(before[1])
    assert outcome.code == 3, outcome.err
    overflowed = {found["name"] for found in json.loads((tmp_path / "r.json").read_text())["overflowed"]}
    assert "layer_2_down" in overflowed
    assert "layer_1_down" not in overflowed


def record_of(path: Path) -> dict[str, object]:
    from slm_runtime.integrity import sha256_of

    return {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}
