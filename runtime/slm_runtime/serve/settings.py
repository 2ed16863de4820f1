"""How much the service takes, and for how long."""

import math
from dataclasses import dataclass

from slm_runtime.errors import InputError


@dataclass(frozen=True)
class ServeSettings:
    """`batch_tokens` (estimated, shared beginnings once) and `max_batch` texts are scored together; a batch waits at
    most `max_wait_s` for company. `max_queue` texts may wait. A request has at most `max_texts` texts and
    `max_body_bytes` bytes, and `deadline_s` seconds from its first byte to its answer.

    Raises:
        InputError: a time that is no time, or a request of `max_texts` texts that would never fit into the queue.
    """

    batch_tokens: int
    max_batch: int
    max_wait_s: float
    max_queue: int
    max_body_bytes: int
    max_texts: int
    deadline_s: float

    def __post_init__(self) -> None:
        for name, seconds in (("--max-wait-ms", self.max_wait_s), ("--deadline-s", self.deadline_s)):
            if not math.isfinite(seconds):
                raise InputError(f"{name} must be a finite number")
        if self.max_texts > self.max_queue:
            raise InputError(
                f"a request may have {self.max_texts} texts and the queue holds {self.max_queue}; "
                "raise --max-queue or lower --max-texts"
            )
