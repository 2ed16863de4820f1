"""Which decoder graphs a run needs, and which rows the int8 decoder may decide."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from slm_runtime.errors import PrecisionError
from slm_runtime.manifest import GraphPrecision, GraphSpec, Manifest
from slm_runtime.prediction import margin, winner
from slm_runtime.scorer import ScoredSequence
from slm_runtime.scoring import log_sum_exp
from slm_runtime.task import Task

Precision = Literal["auto", "fp32", "int8"]


def first_graph(folder: Path, manifest: Manifest, precision: Precision) -> GraphSpec:
    """The decoder that a run with `precision` starts with: int8 where `auto` finds both.

    Raises:
        PrecisionError: the bundle lacks a graph that the precision needs.
    """
    fp32, int8 = manifest.graph("fp32"), manifest.graph("int8")
    if precision == "int8":
        return int8 or _missing(folder, "int8", "export it with --precision int8 as well, or leave the flag out")
    if fp32 is None:
        return _missing(
            folder,
            "fp32",
            "int8 alone may change labels: ask for it with --precision int8, "
            "or export the bundle with --precision fp32 --precision int8",
        )
    return int8 if precision == "auto" and int8 is not None else fp32


def _missing(folder: Path, precision: GraphPrecision, advice: str) -> GraphSpec:
    raise PrecisionError(f"{folder}: holds no {precision} decoder; {advice}")


@dataclass(frozen=True)
class MarginGuard:
    """Decides which int8 answers stand: those whose label an error of up to `bound` nats could not change."""

    bound: float
    task: Task

    def accepts(self, scored: ScoredSequence) -> bool:
        """True when neither the winner nor its side of the task's threshold is in doubt."""
        if not np.isfinite(scored.logprobs).all():
            return False
        temperature = self.task.calibration.temperature
        distance = margin(scored, self.task.calibration) * temperature
        return distance > self.bound and not self._may_cross_threshold(scored, self.bound / temperature)

    def winner(self, scored: ScoredSequence) -> int:
        """The best label's index."""
        return winner(scored, self.task.calibration)

    def _may_cross_threshold(self, scored: ScoredSequence, error: float) -> bool:
        """True when moving every other label by up to `error` calibrated nats could move the score across."""
        threshold = self.task.threshold
        if threshold is None:
            return False
        calibrated = self.task.calibration.apply(scored.logprobs)
        known = calibrated[scored.exact]
        best = int(np.argmax(known))
        others = float(log_sum_exp(np.append(np.delete(known, best), scored.rest)) - known[best])
        low, high = (1 / (1 + math.exp(min(others + shift, 700.0))) for shift in (error, -error))
        return low < threshold <= high
