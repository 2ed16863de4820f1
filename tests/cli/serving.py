"""A service in a process of its own, on a free port of this machine, ended with its block."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

RUN = [sys.executable, "-c", "import sys; from slm_runtime.cli import main; sys.exit(main())"]
START_S = 60


@dataclass
class Served:
    """A running service: its address, its process, what it has said so far."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    terminated: bool = False

    @property
    def url(self) -> str:
        return re.search(r"listening on (\S+),", self.said[0])[1]

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port

    def classify(self, body: object, **options: object) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/classify", json=body, timeout=60, **options)

    def metric(self, name: str, **options: object) -> float:
        """The value of one line of /metrics, its labels included."""
        text = httpx.get(f"{self.url}/metrics", **options).text
        return float(next(line.split()[-1] for line in text.splitlines() if line.rpartition(" ")[0] == name))

    def terminate(self) -> None:
        """Send SIGTERM, unless that was done already: the second one means something else."""
        if not self.terminated:
            self.terminated = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self.terminate()
        return self.process.wait()


def command(bundle: Path, *flags: str) -> list[str]:
    labels = [] if "--task" in flags else ["--labels", "a,b"]
    return [*RUN, "serve", str(bundle), "--port", "0", *labels, *flags]


def start(bundle: Path, *flags: str, variables: dict[str, str] | None = None) -> Served:
    """A service that says what it says into `said`; it may not be ready yet."""
    environment = os.environ | (variables or {})
    process = subprocess.Popen(command(bundle, *flags), stderr=subprocess.PIPE, text=True, env=environment)
    served = Served(process)

    def listen() -> None:
        with process.stderr as stream:
            served.said.extend(iter(stream.readline, ""))

    threading.Thread(target=listen, daemon=True).start()
    return served


@contextmanager
def running(bundle: Path, *flags: str, variables: dict[str, str] | None = None) -> Iterator[Served]:
    """A service that is ready, and that ends with exit code 0."""
    served = start(bundle, *flags, variables=variables)
    try:
        wait_until(lambda: any("ready after" in line for line in served.said) or served.process.poll() is not None)
        assert served.process.poll() is None, served.said
        yield served
        assert served.stop() == 0, served.said
    finally:
        served.process.kill()
        served.process.wait()


def wait_until(condition: Callable[[], bool], seconds: float = START_S) -> None:
    """Return when `condition` holds; fail when it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
