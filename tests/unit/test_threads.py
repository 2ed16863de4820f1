"""C39: never more threads than the process may use."""

import os
from pathlib import Path

import pytest

from slm_runtime import threads
from slm_runtime.threads import usable_threads


def quota(folder: Path, text: str) -> Path:
    (folder / "cpu.max").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("cpu_max", "affinity", "wanted", "expected"),
    [
        ("max 100000", 8, None, 8),
        ("200000 100000", 8, None, 2),
        ("150000 100000", 8, None, 2),
        ("50000 100000", 8, None, 1),
        ("400000 100000", 2, None, 2),
        ("400000 100000", 8, 3, 3),
        ("max 100000", 2, 64, 2),
    ],
)
def test_c39_threads_are_the_smallest_of_quota_affinity_and_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_max: str, affinity: int, wanted: int | None, expected: int
) -> None:
    monkeypatch.setattr(threads, "_CGROUP", quota(tmp_path, cpu_max))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    assert usable_threads(wanted) == expected


def test_c39_without_a_control_group_the_affinity_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert usable_threads() == 2
