"""Task files."""

from pathlib import Path

import pytest

from slm_runtime.calibration import Calibration
from slm_runtime.errors import InputError, LabelError, TaskError
from slm_runtime.task import Example, Task, read_task

FULL = """
system = "Sort these."
user = "Mail: {text}\\nTopic:"
assistant = "Topic: "
scoring = "constrained"
threshold = 0.5
[[label]]
name = "billing"
description = "money"
[[label]]
name = "other"
[[example]]
text = "I paid twice"
label = "billing"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "task.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_full_task_file_is_read(tmp_path: Path) -> None:
    task = read_task(written(tmp_path, FULL))
    assert task == Task(
        labels=("billing", "other"),
        system="Sort these.",
        user="Mail: {text}\nTopic:",
        assistant="Topic: ",
        scoring="constrained",
        threshold=0.5,
        examples=(Example("I paid twice", "billing"),),
        descriptions=("money", ""),
    )


def test_a_prior_is_read_by_name_and_missing_labels_have_none(tmp_path: Path) -> None:
    text = "labels = ['a', 'b', 'c']\nabstain = 'unsure'\n[calibration]\ntemperature = 2\n"
    task = read_task(written(tmp_path, text + "[calibration.prior]\nc = -0.5\na = 1"))
    assert task.calibration == Calibration(2.0, (1.0, 0.0, -0.5))
    assert task.abstain == "unsure"


def test_default_prompt_names_the_labels() -> None:
    task = Task(labels=("billing", "technical", "account"))
    assert task.system_prompt == (
        "You classify support tickets. Answer with exactly one of: billing, technical, account."
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("labels = [", TaskError, "not valid TOML"),
        ("labels = []", LabelError, "no label"),
        ("labels = ['a', ' a']", LabelError, "'a' is there twice"),
        ("labels = ['a', 7]", TaskError, "not a string"),
        ("labels = ['a']\nsistem = 'x'", TaskError, "unknown key 'sistem'"),
        ("system = 'x'", TaskError, "either labels"),
        ("labels = ['a']\nuser = 'no slot'", TaskError, "0 times"),
        ("labels = ['a']\nuser = '{text}{text}'", TaskError, "2 times"),
        ("labels = ['a']\nscoring = 'best'", TaskError, "'best' is unknown"),
        ("labels = ['a']\nthreshold = 2", TaskError, "not a probability"),
        ("labels = ['a']\nthreshold = true", TaskError, "expected a number"),
        ("labels = ['a']\nsystem = 3", TaskError, "system is a int"),
        ("labels = ['a']\n[[example]]\ntext = 'x'\nlabel = 'b'", TaskError, "'b', which is not in"),
        ("labels = ['a']\n[[example]]\ntext = 'x'", TaskError, "'label' is unknown or missing"),
        ("[[label]]\nname = 3", TaskError, "name is a int"),
        ("labels = ['a']\nabstain = 3", TaskError, "abstain is a int"),
        ("labels = ['a']\nabstain = ' '", LabelError, "abstain is empty"),
        ("labels = ['a']\ncalibration = 1.5", TaskError, "calibration is a int|calibration is a float"),
        ("labels = ['a']\n[calibration]\ntemprature = 2", TaskError, "unknown key 'temprature'"),
        ("labels = ['a']\n[calibration]\ntemperature = 0", TaskError, "temperature is 0.0, expected .* above 0"),
        ("labels = ['a']\n[calibration]\ntemperature = inf", TaskError, "temperature is inf"),
        ("labels = ['a']\n[calibration]\ntemperature = '2'", TaskError, "temperature is '2', expected a number"),
        ("labels = ['a']\n[calibration.prior]\nb = 1", TaskError, "'b', which is not in the label list"),
        ("labels = ['a']\n[calibration.prior]\na = nan", TaskError, "prior is nan"),
        ("labels = ['a']\n[calibration.prior]\na = true", TaskError, "prior of 'a' is True, expected a number"),
        (f"labels = ['a']\nthreshold = {10**400}", TaskError, "401 digits"),
    ],
)
def test_a_faulty_task_file_is_one_clear_error(tmp_path: Path, text: str, error: type, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(error, match=message) as caught:
        read_task(path)
    assert str(path) in str(caught.value)


def test_a_missing_task_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the task file"):
        read_task(tmp_path / "none.toml")


def test_digest_changes_with_everything_that_decides_an_answer() -> None:
    base = Task(labels=("a", "b"))
    others = [
        Task(labels=("b", "a")),
        Task(labels=("a", "b"), user="{text}"),
        Task(labels=("a", "b"), scoring="sequence"),
        Task(labels=("a", "b"), threshold=0.1),
    ]
    assert len({task.digest for task in (base, *others)}) == 5
    assert base.digest == Task(labels=("a", "b")).digest
