"""The seed workload stays what it is; a user's file becomes texts, its bad rows counted."""

import hashlib
from pathlib import Path

import pytest

from slm_runtime.errors import InputError
from slm_runtime.workloads import SEED_LABELS, load_workload, seed_tickets

PINNED = "cf720c1aa367b7b29738def39af329933ba9cc5c74a4c6408f91035ecc9136c2"


def test_seed_tickets_are_the_same_on_every_machine() -> None:
    tickets = seed_tickets()
    assert hashlib.sha256("\n".join(tickets).encode()).hexdigest() == PINNED
    assert (len(tickets), len(set(tickets))) == (600, 335)
    lengths = [len(ticket.split()) for ticket in tickets]
    assert (min(lengths), max(lengths)) == (12, 400)


def test_fewer_seed_tickets_are_the_first_ones() -> None:
    assert load_workload("seed", limit=7).texts == tuple(seed_tickets(7)) == tuple(seed_tickets()[:7])
    assert len(load_workload("seed").texts) == 600
    assert SEED_LABELS == ("billing", "technical", "account")


def test_rows_without_a_text_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "tickets.jsonl"
    path.write_text('{"body": "a"}\n{"body": ""}\n{"body": 7}\n{"body": "b"}\n{"body": "c"}\n', encoding="utf-8")
    workload = load_workload(str(path), limit=4, text_column="body")
    assert (workload.name, workload.texts, workload.num_skipped) == ("tickets.jsonl", ("a", "b"), 2)


@pytest.mark.parametrize(("content", "limit"), [('{"text": ""}\n', None), ("", None), ('{"text": "a"}\n', 0)])
def test_a_workload_without_tickets_is_refused(tmp_path: Path, content: str, limit: int | None) -> None:
    path = tmp_path / "tickets.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError):
        load_workload(str(path), limit=limit)
