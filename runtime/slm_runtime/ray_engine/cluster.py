"""The only file that imports ray: a cluster to work on, and the stages of a job as a Ray Data pipeline."""

import logging
import os
import pickle
import socket
import sys
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from slm_runtime.errors import ClusterError, InputError
from slm_runtime.extra import require
from slm_runtime.ray_engine.blocks import LabelledBlock, TicketBlock
from slm_runtime.ray_engine.reading import BlockReader
from slm_runtime.ray_engine.worker import BlockLabeller, WorkerSetup
from slm_runtime.threads import usable_threads

CONNECT_S = 5.0
# Parsing is a thousand times quicker than labelling.
WORKERS_PER_READER = 100
MAX_READ_TASKS = 1000
# A block whose worker died so often is given up, and with it its file.
MAX_TASK_RETRIES = 4
MAX_REASON_CHARS = 500
# Blocks are a megabyte or less; Ray would take a third of the memory.
OBJECT_STORE_BYTES = 500_000_000
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
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


def labelled_blocks(
    names: Sequence[tuple[int, str]], reader: BlockReader, setup: WorkerSetup, *, num_workers: int
) -> Generator[LabelledBlock, None, None]:
    """The labelled blocks of the inputs, (number, name) each: file after file, block after block.

    Blocks that could not be computed are missing.

    Raises:
        ClusterError: the job as a whole failed.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy
    from ray.exceptions import RayError

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    context.target_max_block_size = 1  # every row of the pipeline, a block of tickets, is scheduled by itself
    context.max_consecutive_actor_init_deaths = MAX_TASK_RETRIES
    context.max_errored_blocks = -1  # what is missing is noticed where parts are written
    rows = [{"file": file, "name": name} for file, name in names]
    pipeline = ray.data.from_items(rows, override_num_blocks=min(len(rows), MAX_READ_TASKS))
    pipeline = pipeline.map_batches(
        _read,
        fn_kwargs={"reader": reader},
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=0,
        compute=TaskPoolStrategy(size=min(len(rows), 1 + num_workers // WORKERS_PER_READER)),
    )
    with warnings.catch_warnings():
        # Ray 2.64 will have another way to bound the retries; the extra is pinned below it.
        warnings.simplefilter("ignore", DeprecationWarning)
        pipeline = pipeline.map_batches(
            _Label,
            fn_constructor_kwargs={"setup": setup},
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=setup.threads,
            compute=ActorPoolStrategy(size=num_workers),
            max_restarts=-1,
            max_task_retries=MAX_TASK_RETRIES,
        )
    try:
        for row in pipeline.iter_rows():
            block = pickle.loads(row["block"])  # noqa: S301 - from our own worker
            assert isinstance(block, LabelledBlock)
            yield block
    except RayError as error:
        raise ClusterError(f"the Ray cluster failed: {' '.join(str(error).split())[:MAX_REASON_CHARS]}") from error


def _read(batch: pa.Table, reader: BlockReader) -> Iterator[pa.Table]:
    for row in batch.to_pylist():
        for block in reader.blocks(row["file"], row["name"]):
            yield _packed(block)


class _Label:
    """The worker as Ray Data calls it."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._labeller = BlockLabeller(setup)

    def __call__(self, batch: pa.Table) -> pa.Table:
        (content,) = batch["block"].to_pylist()
        return _packed(self._labeller.label(pickle.loads(content)))  # noqa: S301 - from our own reader


def _packed(block: TicketBlock | LabelledBlock) -> pa.Table:
    return pa.table({"block": pa.array([pickle.dumps(block)], pa.large_binary())})


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
