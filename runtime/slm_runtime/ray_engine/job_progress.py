"""What a long job shows, and what it knows of its workers."""

import sys
import time
from typing import Any

from tqdm import tqdm

from slm_runtime.ray_engine.blocks import LabelledBlock

MAX_TIMELINE_POINTS = 200


class JobProgress:
    """A bar over files on standard error, unless `hidden` or no terminal; `peak_memory` in bytes by worker."""

    def __init__(self, num_files: int, *, hidden: bool) -> None:
        self._started = time.perf_counter()
        self.num_rows = 0
        self.peak_memory: dict[str, int] = {}
        self.timeline: list[tuple[float, int]] = []
        self._blocks, self._every = 0, 1
        self._bar: Any = tqdm(
            total=num_files, unit="file", file=sys.stderr, disable=hidden or not sys.stderr.isatty(), dynamic_ncols=True
        )

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started

    def arrived(self, block: LabelledBlock) -> None:
        """A labelled block has come."""
        self.num_rows += block.counts.rows
        self.peak_memory[block.worker] = block.peak_memory_bytes
        self._blocks += 1
        if self._blocks % self._every == 0:
            self.timeline.append((round(self.elapsed_s, 3), self.num_rows))
        if len(self.timeline) > MAX_TIMELINE_POINTS:  # every other one goes
            self.timeline = self.timeline[1::2]
            self._every *= 2
        self._bar.set_postfix_str(f"{self.num_rows} rows, {self.num_rows / self.elapsed_s:.1f} rows/s")

    def file_done(self) -> None:
        """A file is finished, one way or the other."""
        self._bar.update()

    def close(self) -> None:
        """End the bar."""
        self._bar.close()
