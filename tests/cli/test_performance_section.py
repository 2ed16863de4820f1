"""The README's performance section is what the measurements in tests/bench/results say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("seed", "five", "all77", "peers", "bench", "serve", "quality")
MACHINE = {"system": "Linux", "cpu": "Some CPU", "cores": 2, "threads": 2}
COMMON: dict[str, Any] = {"machine": MACHINE, "versions": {"python": "3.11.7"}}


def quality(accuracy: float) -> dict[str, dict[str, float]]:
    figures = {"num_rows": 110, "macro_f1": 0.5, "calibration_error": 0.125}
    return {
        variant: figures | {"accuracy": accuracy + gain}
        for variant, gain in (("before", 0), ("content_free", 0.05), ("fitted", 0.1))
    }


def parity(name: str, num_labels: int) -> dict[str, Any]:
    answers = {"labels_equal": 40, "of": 40, "padding_share": 0.125}
    return COMMON | {
        "scoring": "first-token",
        "workload": {"name": name, "tickets": 40, "unusable_rows": 1, "too_long": 0},
        "task": {"num_labels": num_labels},
        "bundle": {"id": "some-model"},
        "reference": {
            "item": {"items_per_s": 1.25, "reuses_prompt": False},
            "bucketed": {"items_per_s": 2.5, **answers},
        },
        "runtime": {"packed": {"items_per_s": 50.0, "max_logprob_diff": 1.5e-5, **answers}},
    }


REPORTS: dict[str, dict[str, Any]] = {
    "seed": parity("seed", 3),
    "five": parity("sample.csv", 5),
    "all77": parity("sample.csv", 77),
    "peers": COMMON | {
        "workload": {"name": "seed", "tickets": 60},
        "paths": {
            "PyTorch": {"items_per_s": [1.0, 1.0], "median": 1.0, "labels_equal": 60, "of": 60},
            "Other": {"items_per_s": [1.5, 2.5], "median": 2.0, "labels_equal": 59, "of": 60},
        },
    },
    "bench": COMMON | {
        "workload": {"name": "seed", "tickets": 600},
        "strategies": {"packed": {"items_per_s": 30.0}},
        "roofline": {"decoder_gflops": 90.0, "chain_gflops": 100.0, "share": 0.9},
    },
    "serve": COMMON | {
        "workload": {"name": "seed", "tickets": 600},
        "seconds": 20.0,
        "points": {
            mode: {"64": {"items_per_s": rate, "p50_ms": 1500.0, "p95_ms": 2500.0, "p99_ms": 3500.0}}
            for mode, rate in (("batched", 40.0), ("one by one", 8.0))
        },
        "reference": {"tickets": 20, "items_per_s": 1.25},
    },
    "quality": COMMON | {
        "bundle": {"id": "some-model"},
        "banking77": "test.csv",
        "limits": {"ten": 400, "all77": 200, "seed": 400},
        "workloads": {
            name: {
                "num_labels": num_labels,
                "rows": 231,
                "held_back": 110,
                "prompts": {p: {"held_back": quality(0.4), "examples": 9} for p in ("plain", "described", "few-shot")},
            }
            for name, num_labels in (("ten", 10), ("all77", 77), ("seed", 3))
        },
    },
}  # fmt: skip


def performance(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tests" / "bench" / "performance.py", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    """A README with an empty section; the results are written beside it by `arguments`."""
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- performance -->\n<!-- /performance -->\nafter\n", encoding="utf-8")
    return path


def arguments(readme: Path, reports: dict[str, dict[str, Any]]) -> list[str | Path]:
    """The flags that name every result; those not in `reports` have no file."""
    for name, report in reports.items():
        (readme.parent / f"{name}.json").write_text(json.dumps(report), encoding="utf-8")
    return [part for name in NAMES for part in (f"--{name}", readme.parent / f"{name}.json")] + [readme]


def test_the_section_is_what_the_committed_results_say() -> None:
    done = performance("--check")
    assert done.returncode == 0, done.stderr


def test_figures_and_commands_come_from_the_results(readme: Path) -> None:
    flags = arguments(readme, REPORTS)
    assert performance(*flags).returncode == 0
    text = readme.read_text(encoding="utf-8")
    for line in (
        "Measured on Some CPU, 2 cores, 2 threads, Linux; python 3.11.7.",
        "| this runtime, `packed` | 50.00 | 40.0 | 20.0 | 12.5% | 40/40 | 1.5e-05 |",
        "`slm-parity models/some-model --limit 41 --strategies packed --json tests/bench/results/seed.json`",
        "--workload tests/data/banking77/sample.csv --task tests/bench/banking77-all77.toml --limit 41",
        "| Other | 2.00 | 1.50 - 2.50 | 2.0 | 59/60 |",
        "90% of a bare chain",
        "| 64 | 40.00 | 1,500 | 2,500 | 3,500 | 8.00 | 2,500 | 5.0 |",
        "serve_load.py --bundle models/NAME --seconds 20 --clients 64 --json tests/bench/results/serve.json",
        "| plain prompt, fitted | 50.0% / 0.50 / 0.12 | 50.0% / 0.50 / 0.12 | 50.0% / 0.50 / 0.12 |",
        "quality.py --bundle models/some-model --banking77 test.csv --limit 400 --limit-all77 200 --json",
    ):
        assert line in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert performance("--check", *flags).returncode == 0


def test_the_check_notices_a_changed_figure(readme: Path) -> None:
    flags = arguments(readme, REPORTS)
    performance(*flags)
    text = readme.read_text(encoding="utf-8")
    readme.write_text(text.replace("| 50.00 |", "| 51.00 |", 1), encoding="utf-8")
    done = performance("--check", *flags)
    assert done.returncode == 1
    assert "differs from the results" in done.stderr
    assert "51.00" in readme.read_text(encoding="utf-8"), "a check changes nothing"


def test_a_table_without_its_results_is_left_out(readme: Path) -> None:
    assert performance(*arguments(readme, {"peers": REPORTS["peers"]})).returncode == 0
    text = readme.read_text(encoding="utf-8")
    assert "Other runtimes" in text
    assert "slm-parity" not in text


def test_results_of_two_machines_are_refused(readme: Path) -> None:
    other = REPORTS["five"] | {"machine": MACHINE | {"cpu": "Another CPU"}}
    done = performance(*arguments(readme, {"seed": REPORTS["seed"], "five": other}))
    assert done.returncode == 1
    assert "different machines" in done.stderr
