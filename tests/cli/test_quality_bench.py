"""tests/bench/quality.py and what it measures with: ten groups of intents, descriptions, the table of results."""

import csv
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slm_runtime.task import read_task
from slm_runtime.workloads import SEED_LABELS

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "tests" / "bench"
SAMPLE = ROOT / "tests" / "data" / "banking77" / "sample.csv"


def bench(script: str, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, BENCH / script, *argv], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def intents() -> set[str]:
    with SAMPLE.open(encoding="utf-8", newline="") as stream:
        return {row["category"] for row in csv.DictReader(stream)}


def test_every_intent_is_in_one_group_as_the_task_file_says(intents: set[str]) -> None:
    sys.path.insert(0, str(BENCH))
    try:
        from banking77_groups import GROUPS
    finally:
        sys.path.remove(str(BENCH))
    grouped = [intent for members in GROUPS.values() for intent in members]
    assert sorted(grouped) == sorted(intents)
    assert tuple(GROUPS) == read_task(BENCH / "banking77-ten.toml").labels
    comment = re.sub(r"\n#   ", " ", (BENCH / "banking77-ten.toml").read_text(encoding="utf-8"))
    documented = dict(re.findall(r"^# ([a-z-]+): (.+)$", comment, re.MULTILINE))
    assert {label: tuple(text.split(", ")) for label, text in documented.items()} == GROUPS


def test_the_grouped_file_has_the_task_s_labels(tmp_path: Path) -> None:
    done = bench("banking77_groups.py", SAMPLE, tmp_path / "ten.csv")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "ten.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 231
    assert rows[0] == {"text": "How do I locate my card?", "label": "ordering"}
    assert {row["label"] for row in rows} == set(read_task(BENCH / "banking77-ten.toml").labels)


def test_every_label_is_described() -> None:
    described = tomllib.loads((BENCH / "descriptions.toml").read_text(encoding="utf-8"))
    assert set(described["seed"]) == set(SEED_LABELS)
    for name in ("ten", "all77"):
        assert set(described[name]) == set(read_task(BENCH / f"banking77-{name}.toml").labels)


def test_quality_is_measured_for_every_prompt_and_calibration(bundle: Path, tmp_path: Path) -> None:
    result = tmp_path / "quality.json"
    done = bench("quality.py", "--bundle", bundle, "--workloads", "seed", "--limit", "24", "--json", result)
    assert done.returncode == 0, done.stderr
    report = json.loads(result.read_text())
    seed = report["workloads"]["seed"]
    assert list(seed["prompts"]) == ["plain", "described", "few-shot"]
    for found in seed["prompts"].values():
        assert list(found["held_back"]) == ["before", "content_free", "fitted"]
        assert found["held_back"]["before"]["num_rows"] == seed["held_back"]
        assert found["fit_rows"] + seed["held_back"] <= 24
    assert seed["prompts"]["few-shot"]["examples"] == 3
    assert seed["prompts"]["few-shot"]["fit_rows"] < seed["prompts"]["plain"]["fit_rows"], "examples are not fitted on"
