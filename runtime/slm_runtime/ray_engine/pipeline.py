"""The stages of a job as a Ray Data pipeline: read, label, and hand back in order."""

import pickle
import warnings
from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa

from slm_runtime.errors import ClusterError
from slm_runtime.ray_engine.blocks import LabelledBlock, TicketBlock
from slm_runtime.ray_engine.cluster import MAX_REASON_CHARS
from slm_runtime.ray_engine.reading import BlockReader
from slm_runtime.ray_engine.worker import BlockLabeller, WorkerSetup

# Parsing is a thousand times quicker than labelling.
WORKERS_PER_READER = 100
MAX_READ_TASKS = 1000
# A block whose worker died so often is given up, and with it its file.
MAX_TASK_RETRIES = 4


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
