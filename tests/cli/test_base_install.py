"""The base install is the runtime alone: no torch, no transformers, not even when they are there."""

import subprocess
import sys
from pathlib import Path

import pytest

from slm_export import extras
from slm_export.cli import main as slm_export
from slm_export.parity_cli import main as slm_parity

HEAVY = ("torch", "transformers", "optimum", "onnx", "slm_export")
CHECK = f"""
import sys
{{extra}}
from slm_runtime.cli import main
code = main(sys.argv[1:])
loaded = sorted(set({HEAVY!r}) & set(sys.modules))
print("loaded:", loaded, file=sys.stderr)
sys.exit(1 if loaded else code)
"""


def classify_in_a_process(bundle: Path, extra: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHECK.format(extra=extra)]
    argv = ["classify", str(bundle), "--labels", "a,b", "--quiet"]
    return subprocess.run(command + argv, input='{"text": "hello"}\n', capture_output=True, text=True, check=False)


def test_slm_run_loads_nothing_of_the_export_side(bundle: Path) -> None:
    done = classify_in_a_process(bundle)
    assert done.returncode == 0, done.stderr
    assert '"label"' in done.stdout


def test_the_check_above_can_fail(bundle: Path) -> None:
    assert classify_in_a_process(bundle, "import onnx").returncode == 1


@pytest.mark.parametrize(("main", "argv"), [(slm_export, ("MODEL", "--output", "x")), (slm_parity, ("BUNDLE",))])
def test_export_commands_say_what_is_missing(run, monkeypatch: pytest.MonkeyPatch, main, argv: tuple[str, ...]) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "torch" else object())
    outcome = run(*argv, main=main)
    assert outcome.code == 2
    assert "torch not installed; pip install 'slm-runtime[export]'" in outcome.err
