"""How many threads this process may really use."""

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_threads(wanted: int | None = None) -> int:
    """The smallest of `wanted`, the CPU affinity mask and the container's CPU quota, at least 1.

    OMP_NUM_THREADS is not consulted: onnxruntime does not use OpenMP.
    """
    limits = [_affinity(), _cgroup_quota(_CGROUP)]
    if wanted is not None:
        limits.append(wanted)
    return max(1, min(limit for limit in limits if limit is not None))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_quota(root: Path) -> int | None:
    """Whole CPUs that the cgroup's quota allows (v2, then v1), rounded up; None when there is no quota."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or int(quota) <= 0:  # "max" in v2, -1 in v1
        return None
    return math.ceil(int(quota) / int(period))
