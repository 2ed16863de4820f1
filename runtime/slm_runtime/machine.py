"""What a record of a run says about the machine."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

RECORDED_VERSIONS = ("slm-runtime", "onnxruntime", "tokenizers", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of everything that decides an answer."""
    found = {name: importlib.metadata.version(name) for name in RECORDED_VERSIONS}
    return {"python": platform.python_version(), **found}


def describe_machine(num_threads: int) -> dict[str, str | int]:
    """Name of the CPU, its cores, the threads in use."""
    return {
        "system": platform.system(),
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 1,
        "threads": num_threads,
    }


def peak_memory_bytes() -> int:
    """The largest resident size of this process so far; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def cpu_name() -> str:
    """What the system calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
