"""Many tickets at once: every answer at its row, and memory that does not climb."""

import gc
from pathlib import Path

import numpy as np
import pytest

from slm_runtime import Classifier, RunOptions, Task, Ticket

TASK = Task(("billing", "technical", "account"))


def tickets() -> list[Ticket]:
    """257 tickets of falling and equal lengths, each with its number, some empty, failed, or equal but for a blank."""
    made = []
    for row in range(257):
        text = f"ticket {row:04d} " + "please help " * max(1, 12 - row // 12)
        if row % 29 == 3:
            made.append(Ticket(row, f"t{row}", None, "line 7: not JSON"))
        elif row % 31 == 5:
            made.append(Ticket(row, f"t{row}", "  "))
        elif row % 37 == 7:
            made.append(Ticket(row, f"t{row}", "the same text" + " " * (row % 2)))
        else:
            made.append(Ticket(row, f"t{row}", text))
    return made


@pytest.fixture(scope="module")
def classifier(bundle: Path) -> Classifier:
    return Classifier.load(bundle)


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(batch_tokens=1),
        RunOptions(batch_tokens=300),
        RunOptions(batch_tokens=5000, window=16),
        RunOptions(strategy="bucketed", batch_tokens=200, window=7),
        RunOptions(strategy="naive", dedupe=False),
    ],
    ids=["one token", "300 tokens", "windows of 16", "bucketed, windows of 7", "naive"],
)
def test_c14_every_answer_belongs_to_its_row(classifier: Classifier, options: RunOptions) -> None:
    expected = list(classifier.prepare(TASK, RunOptions(strategy="item", dedupe=False)).run(tickets()))
    found = list(classifier.prepare(TASK, options).run(tickets()))
    assert [(p.row, p.id, p.label, p.error) for p in found] == [(p.row, p.id, p.label, p.error) for p in expected]
    assert [p.row for p in found] == list(range(257))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(list(one.scores.values()), list(other.scores.values()), atol=1e-5)
    same = {p.scores["billing"] for p, t in zip(found, tickets(), strict=True) if t.text == "the same text"}
    padded = {p.scores["billing"] for p, t in zip(found, tickets(), strict=True) if t.text == "the same text "}
    assert len(same) == 1
    assert same != padded


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_c39_memory_is_flat_over_hundreds_of_shapes_and_one_huge_ticket(classifier: Classifier) -> None:
    options = RunOptions(strategy="bucketed", batch_tokens=400, max_tokens=3000)
    texts = [f"{i} " + "x y " * (i % 211) for i in range(640)]
    classifier.classify(texts[:211], TASK, options)
    gc.collect()
    before = resident_bytes()
    classifier.classify(texts, TASK, options)
    classifier.classify(["9" * 9000, *texts[:63]], TASK, options)
    gc.collect()
    assert resident_bytes() - before < 60_000_000
