"""Disk and memory figures, from made-up /proc and control group trees."""

from pathlib import Path

import pytest

from slm_export.resources import available_memory_bytes, free_disk_bytes, require_room
from slm_runtime.errors import ResourceError

MACHINE_BYTES = 8000 * 1024


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("", {}, MACHINE_BYTES),
        (
            "0::/box/job",
            {"box/memory.max": "5000", "box/memory.current": "3000", "box/memory.stat": "inactive_file 500"},
            2500,
        ),
        (
            "0::/seen/only/by/host",
            {"memory.max": "max", "memory.current": "1", "memory.stat": ""},
            MACHINE_BYTES,
        ),
        (
            "4:cpu,memory:/box",
            {
                "memory/box/memory.limit_in_bytes": "5000",
                "memory/box/memory.usage_in_bytes": "6000",
                "memory/box/memory.stat": "total_inactive_file 400",
            },
            0,
        ),
    ],
    ids=["no-group", "v2-limit-of-the-parent", "v2-no-limit", "v1-over-its-limit"],
)
def test_c39_memory_is_what_the_container_has_left(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int
) -> None:
    proc = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n", "proc/self/cgroup": membership}
    for name, content in (proc | {f"cgroup/{name}": content for name, content in files.items()}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert available_memory_bytes(tmp_path / "proc", tmp_path / "cgroup") == expected


def test_without_proc_memory_is_the_machines(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path, tmp_path) > 100 * 10**6


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert free_disk_bytes(tmp_path / "not" / "yet") > 0


@pytest.mark.parametrize(
    ("disk_bytes", "memory_bytes", "message"),
    [
        (10**18, 0, r"testing needs 1000000000\.0 GB of disk.*are free"),
        (0, 10**18, r"testing needs .* of memory"),
    ],
)
def test_too_little_room_says_need_have_and_way_out(
    tmp_path: Path, disk_bytes: int, memory_bytes: int, message: str
) -> None:
    require_room(tmp_path, 0, 0, "testing")
    with pytest.raises(ResourceError, match=message):
        require_room(tmp_path, disk_bytes, memory_bytes, "testing")
