"""Room on disk and in memory, looked at before anything is downloaded or written."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from slm_runtime.errors import ResourceError

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def free_disk_bytes(path: Path) -> int:
    """Bytes this user may still write at `path`, which need not exist yet."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def available_memory_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes a new allocation may take: the machine's figure or the tightest container limit, the lesser.

    Where the kernel gives no such figure (macOS), the machine's physical memory.
    """
    return min([_machine_bytes(proc), *_cgroup_room_bytes(proc, cgroup)])


def require_room(path: Path, disk_bytes: int, memory_bytes: int, what: str) -> None:
    """Return if `path` has `disk_bytes` free and `memory_bytes` can be allocated.

    Raises: ResourceError naming `what`, the need, what there is, and the way out.
    """
    free = free_disk_bytes(path)
    if free < disk_bytes:
        raise ResourceError(
            f"{what} needs {_in_units(disk_bytes)} of disk at {path}, {_in_units(free)} are free. "
            "Free some space, or choose a larger disk with --cache-dir or --output."
        )
    available = available_memory_bytes()
    if available < memory_bytes:
        raise ResourceError(
            f"{what} needs {_in_units(memory_bytes)} of memory, {_in_units(available)} are available. "
            "Close other programs, raise the container's limit, or choose a smaller model."
        )


def _machine_bytes(proc: Path) -> int:
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kib_by_name = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)}
    return int(kib_by_name["MemAvailable"]) * 1024


def _cgroup_room_bytes(proc: Path, cgroup: Path) -> Iterator[int]:
    """Limit minus use of every control group around this process; page cache counts as free."""
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            mount, limit, use, cache = cgroup, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit, use, cache = (
                cgroup / "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        for folder in _with_parents(mount, group):
            room = _room_bytes(folder / limit, folder / use, folder / "memory.stat", cache)
            if room is not None:
                yield room


def _with_parents(mount: Path, group: str) -> list[Path]:
    """The group's folder and its parents up to the mount: inside a container only the mount exists."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _room_bytes(limit: Path, use: Path, stat: Path, cache: str) -> int | None:
    """None where there is no limit, or where the group is not visible from here."""
    try:
        limit_text = limit.read_text(encoding="ascii").strip()
        if limit_text == "max":
            return None
        used = int(use.read_text(encoding="ascii"))
        counters = dict(line.split() for line in stat.read_text(encoding="ascii").splitlines())
    except OSError:
        return None
    return max(0, int(limit_text) - used + int(counters.get(cache, "0")))


def _in_units(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 10**9 else f"{num_bytes / 1e6:.0f} MB"
