"""The README says what is true: its command reference, links, commands, examples and tables."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from slm_runtime.classifier import Classifier
from slm_runtime.errors import TaskError
from slm_runtime.records import Prediction
from slm_runtime.task import Task, read_task

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = ("README.md", "models/README.md", "export/DESIGN.md", "runtime/DESIGN.md")
EXAMPLE_BUNDLE = "models/qwen2.5-0.5b-instruct"


def readme_help(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tests" / "readme_help.py", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def code_block(language: str) -> str:
    match = re.search(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert match, f"README has no {language} block"
    return match[1]


def documented_keys() -> set[str]:
    """What stands in backquotes in the first column of the README's tables."""
    cells = re.findall(r"^\| ([^|]+) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


def broken_links(document: Path) -> list[str]:
    """Relative links to files that are not there, and links to headings that are not in the document."""
    text = document.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)
    }
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        if "://" in target:
            continue
        if (name and not (document.parent / name).exists()) or (not name and anchor not in headings):
            broken.append(target)
    return broken


def test_command_reference_is_the_help_of_the_commands() -> None:
    done = readme_help("--check")
    assert done.returncode == 0, done.stderr


def test_the_check_notices_a_changed_and_a_missing_block_and_rewriting_mends_them(tmp_path: Path) -> None:
    good, copy = README.read_text(encoding="utf-8"), tmp_path / "README.md"
    changed = good.replace("No progress bar, no summary.", "No bar.")
    assert changed != good
    copy.write_text(changed, encoding="utf-8")
    done = readme_help("--check", copy)
    assert done.returncode == 1
    assert "the help of slm-run classify differs" in done.stderr
    assert readme_help(copy).returncode == 0
    assert copy.read_text(encoding="utf-8") == good
    copy.write_text(good.replace("<!-- help:slm-run verify -->", ""), encoding="utf-8")
    assert "no block for slm-run verify" in readme_help("--check", copy).stderr


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    assert broken_links(ROOT / name) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# One\n[x](no.md) [y](#two) [z](#one) [w](https://example.org/none)\n")
    assert broken_links(document) == ["no.md", "#two"]


def test_scripts_that_the_documents_name_exist() -> None:
    for name in DOCUMENTS:
        scripts = re.findall(r"\b(?:bash|python) ([\w./-]+\.(?:sh|py))\b", (ROOT / name).read_text(encoding="utf-8"))
        assert [script for script in scripts if not (ROOT / script).is_file()] == []
    assert "bash models/demo.sh" in README.read_text(encoding="utf-8")
    assert "bash tests/run.sh" in README.read_text(encoding="utf-8")


def test_python_example_labels_its_tickets(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = code_block("python")
    assert EXAMPLE_BUNDLE in code
    exec(compile(code.replace(EXAMPLE_BUNDLE, str(bundle)), "README example", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        label, score, margin = line.split()
        assert label in {"billing", "technical", "account"}
        assert 1 / 3 <= float(score) <= 1
        assert float(margin) >= 0


def test_task_example_is_a_task_that_a_model_can_be_asked(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text(code_block("toml"), encoding="utf-8")
    task, default = read_task(path), Task(labels=("billing", "technical", "account"))
    same = [f.name for f in fields(Task) if getattr(task, f.name) == getattr(default, f.name)]
    assert same == ["labels", "scoring", "descriptions"]  # every other key of the example does something
    assert Classifier.load(bundle).prepare(task).rule == "first-token"


def test_every_task_key_and_every_output_key_is_documented(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text("nonsense = 1\n")
    with pytest.raises(TaskError, match="unknown key 'nonsense', expected ") as caught:
        read_task(path)
    task_keys = str(caught.value).rpartition("expected ")[2].split(", ")
    assert len(task_keys) > 5
    assert {*task_keys, *(f.name for f in fields(Prediction))} - documented_keys() == set()
