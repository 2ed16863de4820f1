"""slm-run bench: every figure of the contract, and the faults of its arguments."""

import json
from pathlib import Path

import pytest


def test_json_holds_every_figure(run, bundle: Path) -> None:
    outcome = run("bench", bundle, "--limit", 30, "--strategies", "all", "--rounds", 2, "--json", "-")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert list(report["strategies"]) == ["packed", "bucketed", "naive", "item"]
    packed, naive = report["strategies"]["packed"], report["strategies"]["naive"]
    assert len(packed["items_per_s_rounds"]) == 2
    assert packed["processed_tokens"] < naive["real_tokens"] < naive["processed_tokens"]
    assert packed["padding_share"] < naive["padding_share"]
    assert packed["tree_saved_tokens"] > naive["tree_saved_tokens"] == 0
    assert packed["prefix_saved_tokens"] > 0
    assert set(report["roofline"]) == {"decoder_gflops", "chain_gflops", "share"}
    assert report["peak_memory_bytes"] > 0


def test_table_and_file(run, bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    outcome = run("bench", bundle, "--limit", 5, "--no-roofline", "--json", path)
    assert outcome.code == 0
    assert "packed" in outcome.out
    assert json.loads(path.read_text())["roofline"] is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--strategies", "fast"), "'fast' is unknown"),
        (("--workload", "missing.csv"), "missing.csv"),
        (("--limit", "3", "--json", "no/such/folder/x.json"), "cannot be written"),
    ],
)
def test_faults_are_one_line(run, bundle: Path, argv: tuple[str, ...], message: str) -> None:
    outcome = run("bench", bundle, "--no-roofline", *argv)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
