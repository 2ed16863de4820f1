"""Wall and processor time of a stretch of work: together they show whether other processes disturbed it."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """`wall_s` passed, in which all threads of this process together had `cpu_s` of processor time."""

    wall_s: float
    cpu_s: float

    def cpu_share(self, num_threads: int) -> float:
        """How much of the time of `num_threads` processors the work got; near 1 on a machine of its own."""
        return self.cpu_s / (self.wall_s * num_threads)


class Stopwatch:
    """Runs from its creation on."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def read(self) -> Timing:
        return Timing(time.perf_counter() - self._wall, time.process_time() - self._cpu)
