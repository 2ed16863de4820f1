"""slm-parity: what it accepts, what it says, how it ends."""

import json
import sys
from pathlib import Path

import pytest
from tiny_bundles import make_bundle
from tiny_models import make_checkpoint

from slm_export.parity_cli import main
from slm_export.parity_report import DISTURBED_CPU_SHARE, to_table
from slm_export.stopwatch import Timing


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints, `same` and `other`, and the bundle of the first."""
    folder = tmp_path_factory.mktemp("parity")
    make_checkpoint(folder / "same")
    make_checkpoint(folder / "other", "llama")
    make_bundle(folder / "bundle", folder / "same")
    return folder


def test_equal_labels_end_with_0_and_the_contracts_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tiny / "bundle"), "--limit", "8", "--threads", "1", "--json", str(tiny / "out.json")]
    assert main([*arguments, "--strategies", "packed,bucketed,naive,item"]) == 0
    report = json.loads((tiny / "out.json").read_text(encoding="utf-8"))
    assert set(report) >= {"reference", "runtime", "machine", "versions", "scoring"}
    assert set(report["runtime"]) == {"packed", "bucketed", "naive", "item"}
    for found in report["runtime"].values():
        assert (found["labels_equal"], found["of"]) == (8, 8)
        assert found["max_logprob_diff"] < report["tolerance"]
        assert found["ratio_to_item"] == pytest.approx(
            found["items_per_s"] / report["reference"]["item"]["items_per_s"]
        )
    output = capsys.readouterr()
    assert "runtime, packed" in output.out
    assert "slm-parity: reference, item by item" in output.err
    assert not list(tiny.glob("*.partial"))


def test_another_model_as_reference_ends_with_3_and_still_reports(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tiny / "bundle"), "--reference", str(tiny / "other"), "--limit", "8", "--json", "-"]
    assert main(arguments) == 3
    output = capsys.readouterr()
    worst = json.loads(output.out)["runtime"]["packed"]["worst_ticket"]
    assert worst["max_logprob_diff"] > 1e-3
    assert "differs from the reference by strategy packed, bucketed" in output.err


def test_unusable_and_too_long_rows_are_left_out_and_said_so(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny / "tickets.jsonl"
    rows = [{"text": "wifi down"}, {"text": ""}, {"text": "1" * 5000}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = [str(tiny / "bundle"), "--workload", str(path), "--labels", "bug,refund", "--json", "-"]
    assert main(arguments) == 0
    output = capsys.readouterr()
    workload = json.loads(output.out)["workload"]
    assert (workload["tickets"], workload["unusable_rows"], workload["too_long"]) == (1, 1, 1)
    assert "1 rows without a usable text" in output.err
    assert "1 tickets make prompts of over " in output.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "BUNDLE"),
        (["none"], 4, "no such bundle folder"),
        (["none", "--strategies", "packed,fast"], 2, "'fast', expected some of packed,bucketed,naive,item"),
        (["none", "--strategies", ","], 2, "nothing, expected some of"),
        (["none", "--labels", "a", "--task", "t.toml"], 2, "not both"),
        (["none", "--workload", "t.csv"], 2, "needs --labels or --task"),
        (["none", "--workload", "t.csv", "--labels", "a,b"], 2, "t.csv"),
        (["none", "--json", "no/such/folder.json"], 2, "existing folder"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    output = capsys.readouterr()
    assert message in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_without_torch_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["none"]) == 2
    message = capsys.readouterr().err
    assert "torch" in message
    assert "pip install 'slm-runtime[export]'" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(("cpu_s", "warned"), [(19.0, False), (9.8, True)])
def test_a_measurement_beside_a_busy_process_is_marked(cpu_s: float, warned: bool) -> None:
    share = Timing(wall_s=10.0, cpu_s=cpu_s).cpu_share(2)
    assert (share < DISTURBED_CPU_SHARE) is warned
    clean = {"items_per_s": 1.0, "cpu_share": 0.95, "padding_share": 0.0, "labels_equal": 1, "of": 1}
    report = {
        "scoring": "first-token",
        "timing": "t",
        "workload": {"tickets": 1, "name": "seed"},
        "reference": {"item": {"items_per_s": 1.0, "cpu_share": share, "reuses_prompt": False}, "bucketed": clean},
        "runtime": {"packed": clean | {"max_logprob_diff": 0.0, "worst_ticket": None}},
    }
    assert ("WARNING reference, item: got 49%" in to_table(report)) is warned
