"""What a compiled model belongs to: it is of no use, and may break, under any other of these."""

import hashlib
import json
import platform
import subprocess
from dataclasses import asdict, dataclass

import onnxruntime as ort

from slm_runtime.coreml.provider import COMPUTE_UNITS
from slm_runtime.static_graph import StaticPrecision


@dataclass(frozen=True)
class Versions:
    """onnxruntime, build of macOS, compute units, digest of the bundle."""

    onnxruntime: str
    system: str
    units: str
    bundle: str

    @property
    def key(self) -> str:
        """A name for a folder."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:32]


def current_versions(precision: StaticPrecision, bundle_digest: str) -> Versions:
    return Versions(ort.__version__, system_build(), COMPUTE_UNITS[precision], bundle_digest)


def system_build() -> str:
    """The build of macOS, which changes with every update; elsewhere the kernel's release."""
    if platform.system() == "Darwin":
        try:
            return subprocess.run(
                ["/usr/bin/sw_vers", "-buildVersion"], capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return f"{platform.mac_ver()[0]} {platform.release()}"
    return f"{platform.system()} {platform.release()}"
