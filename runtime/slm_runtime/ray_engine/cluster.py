"""A Ray cluster to work on: one that is there, or one on this machine for the time of a job."""

import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slm_runtime.errors import ClusterError, InputError
from slm_runtime.extra import require
from slm_runtime.threads import usable_threads

CONNECT_S = 5.0
MAX_REASON_CHARS = 500
# Blocks are a megabyte or less; Ray would take a third of the memory.
OBJECT_STORE_BYTES = 500_000_000
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what it would print about dead workers, on standard output
}
# The name is historical: without clusters, Ray listens on the loopback interface alone.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def import_ray(address: str | None) -> None:
    """Import ray with the settings for a cluster at `address`, or for one on this machine, which it reads only once.

    Raises:
        InputError: ray is not installed.
    """
    settings = _QUIET if address is not None else _QUIET | _LOOPBACK
    os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
    require("ray.data", extra="ray", purpose="--engine ray")
    # Advice to programmers, from threads of its own: deprecations, more workers than blocks.
    warnings.filterwarnings("ignore", category=Warning, module=r"ray\.data\.")


@contextmanager
def cluster(address: str | None, *, num_workers: int | None, threads: int) -> Iterator[int]:
    """A connection to the cluster at `address`, or a cluster on this machine alone that ends with the context.

    Yields the number of workers: `num_workers`, or as many as have room with so many `threads` each. A connection that
    this process has already is used and left open.

    Raises:
        InputError: the address is none.
        ClusterError: there is no cluster at the address, or none can be started.
    """
    import ray

    connected_before = ray.is_initialized()
    if not connected_before:
        if address is None:
            _start(num_cpus=(num_workers or max(1, usable_threads() // threads)) * threads)
        else:
            _connect(address)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # failures are told by file, in our words
    try:
        yield num_workers or _room(threads)
    finally:
        if not connected_before:
            ray.shutdown()


def _start(*, num_cpus: int) -> None:
    import ray

    try:
        with _silent():
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                logging_level="critical",
                log_to_driver=False,
            )
    except SystemExit as stop:  # what Ray makes of SIGTERM
        raise KeyboardInterrupt from stop
    except Exception as error:  # Ray raises no class of its own here
        reason = " ".join(str(error).split())
        raise ClusterError(f"no Ray cluster starts on this machine: {reason[:MAX_REASON_CHARS]}") from error


def _connect(address: str) -> None:
    import ray

    _check_reachable(address)
    try:
        with _silent():
            ray.init(address=address, logging_level="critical", log_to_driver=False)
    except (OSError, ValueError, RuntimeError, SystemExit) as error:
        raise _unreachable(address, " ".join(str(error).split())) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing on standard error, not even from Ray's C++ side, which announces that it will not log."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _check_reachable(address: str) -> None:
    """Return when something listens there; Ray itself would try for minutes, and say so all the time."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise InputError(
            f"--ray-address {address}: expected HOST:PORT of the cluster's head, such as 10.0.0.5:6379, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, reason: str) -> ClusterError:
    return ClusterError(
        f"--ray-address {address}: no Ray cluster can be reached there ({reason}); start one with ray start --head, "
        "or leave the address out to use this machine alone"
    )


def _room(threads: int) -> int:
    import ray

    nodes: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    return max(1, sum(int(node["Resources"].get("CPU", 0)) // threads for node in nodes))
