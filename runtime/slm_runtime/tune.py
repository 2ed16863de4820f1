"""Fit a task's calibration on one half of the rows with right labels, and judge it on the other."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slm_runtime.calibration import NEUTRAL, Calibration
from slm_runtime.classifier import Classifier, OnFinished
from slm_runtime.content_free import content_free_prior
from slm_runtime.errors import InputError
from slm_runtime.options import RunOptions
from slm_runtime.records import Ticket
from slm_runtime.scoring import Float64
from slm_runtime.task import Task
from slm_runtime.tune_fit import fit_calibration, fit_threshold, rounded
from slm_runtime.tune_gold import GoldRow, is_for_fitting
from slm_runtime.tune_metrics import Int64, Quality, quality_of

Variant = Literal["before", "content_free", "fitted"]
MIN_ROWS_PER_HALF = 2


@dataclass(frozen=True)
class ScoredRows:
    """Uncalibrated log-probabilities [N, C] over the labels, right labels [N], and which rows are for fitting [N].

    `num_failed` rows more could not be classified.
    """

    logprobs: Float64
    gold: Int64
    for_fitting: NDArray[np.bool_]
    num_failed: int

    def half(self, *, for_fitting: bool) -> tuple[Float64, Int64]:
        """The log-probabilities and the right labels of one half."""
        rows = self.for_fitting == for_fitting
        return self.logprobs[rows], self.gold[rows]


@dataclass(frozen=True)
class Tuning:
    """What was fitted, and how good each variant is on the half it was fitted on and on the one held back.

    `threshold` is None where none was asked for or none keeps the error rate.
    """

    calibration: Calibration
    threshold: float | None
    fit: Mapping[Variant, Quality]
    held_back: Mapping[Variant, Quality]

    def to_json(self, labels: Sequence[str]) -> dict[str, Any]:
        return {
            "temperature": self.calibration.temperature,
            "prior": dict(zip(labels, self.calibration.prior, strict=True)),
            "threshold": self.threshold,
            "fit": {variant: quality.to_json() for variant, quality in self.fit.items()},
            "held_back": {variant: quality.to_json() for variant, quality in self.held_back.items()},
        }


def check_tunable(task: Task) -> None:
    """Return when `task` can be tuned. Raises InputError for one that is calibrated already, or has one label."""
    if task.calibration != NEUTRAL:
        raise InputError("the task has a [calibration] already; remove it to fit another one")
    if len(task.labels) < 2:
        raise InputError("the task has one label, expected at least two: there is nothing to tune")


def score_rows(
    classifier: Classifier,
    task: Task,
    rows: Sequence[GoldRow],
    *,
    seed: int = 0,
    on_finished: OnFinished = lambda _: None,
) -> ScoredRows:
    """Every label of every row, scored once, without the task's calibration.

    Raises:
        TaskError: as for `Classifier.prepare`.
        InputError: a half has fewer than `MIN_ROWS_PER_HALF` rows that can be classified.
    """
    bare = dataclasses.replace(task, calibration=NEUTRAL)
    tickets = (Ticket(number, None, row.text) for number, row in enumerate(rows))
    predictions = list(classifier.prepare(bare, RunOptions(all_scores=True)).run(tickets, on_finished))
    usable = [(row, p) for row, p in zip(rows, predictions, strict=True) if p.error is None]
    for_fitting = np.array([is_for_fitting(row.text, seed) for row, _ in usable], np.bool_)
    num_fit = int(for_fitting.sum())
    if min(num_fit, len(usable) - num_fit) < MIN_ROWS_PER_HALF:
        raise InputError(
            f"{len(usable)} usable rows with a gold label make halves of {num_fit} and {len(usable) - num_fit}, "
            f"expected at least {MIN_ROWS_PER_HALF} each; give more rows, or another --seed"
        )
    # A score may be too small for a float; its logarithm must not be infinite.
    smallest = np.finfo(np.float64).tiny
    logprobs = np.log(np.maximum([list(p.scores.values()) for _, p in usable], smallest))
    gold = np.array([row.gold for row, _ in usable], np.int64)
    return ScoredRows(logprobs, gold, for_fitting, len(rows) - len(usable))


def tune(classifier: Classifier, task: Task, scored: ScoredRows, *, max_error: float | None = None) -> Tuning:
    """The calibration that fits the one half best, and with `max_error` the smallest threshold that keeps it there."""
    prior = content_free_prior(classifier, task)
    logprobs, gold = scored.half(for_fitting=True)
    calibration = fit_calibration(logprobs, gold, np.array(prior))
    threshold = None if max_error is None else fit_threshold(calibration.apply(logprobs), gold, max_error)
    variants: dict[Variant, tuple[Calibration, float | None]] = {
        "before": (NEUTRAL, None),
        "content_free": (rounded(Calibration(prior=prior)), None),
        "fitted": (calibration, threshold),
    }
    fit = _qualities(variants, *scored.half(for_fitting=True))
    held_back = _qualities(variants, *scored.half(for_fitting=False))
    return Tuning(calibration, threshold, fit, held_back)


def _qualities(
    variants: Mapping[Variant, tuple[Calibration, float | None]], logprobs: Float64, gold: Int64
) -> dict[Variant, Quality]:
    return {
        variant: quality_of(calibration.apply(logprobs), gold, threshold)
        for variant, (calibration, threshold) in variants.items()
    }
