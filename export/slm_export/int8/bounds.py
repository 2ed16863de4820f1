"""How far int8 moves margins: both decoders of a bundle on calibration rows that the rounding has not seen."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from slm_export.int8.prompts import PROMPTS_PER_TASK, Sample, calibration_samples, num_tasks
from slm_runtime.classifier import Classifier
from slm_runtime.errors import TaskError
from slm_runtime.labels import Rule
from slm_runtime.manifest import MarginBound
from slm_runtime.options import RunOptions
from slm_runtime.records import Ticket

Say = Callable[[str], None]
# Rows per task: where there is one bound for a rule, it covers all tasks.
ROWS_PER_TASK: dict[Rule, int] = {"first-token": 75, "sequence": 25, "constrained": 25}
CONFIDENCE = 0.95


def measure_bounds(folder: Path, *, say: Say) -> tuple[MarginBound, ...]:
    """One bound for every scoring rule, for the bundle in `folder`, which holds both decoders."""
    fp32, int8 = (Classifier.load(folder, precision=precision) for precision in ("fp32", "int8"))
    bounds = []
    for rule in get_args(Rule):
        samples = calibration_samples(ROWS_PER_TASK[rule], skip=PROMPTS_PER_TASK * num_tasks())
        samples = [dataclasses.replace(s, task=dataclasses.replace(s.task, scoring=rule)) for s in samples]
        pairs = [(_logprobs(fp32, sample), _logprobs(int8, sample)) for sample in samples if _fits(fp32, sample)]
        if not pairs:
            continue
        bound = summarize(rule, pairs)
        say(
            f"int8, {rule} scoring: largest margin error {bound.bound:.3f} nats on {bound.num_rows} rows, median "
            f"{bound.median_error:.3f}; {bound.labels_differ} labels differ without the guard"
        )
        bounds.append(bound)
    return tuple(bounds)


def summarize(rule: Rule, pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> MarginBound:
    """The bound over pairs of label log-probabilities in fp32 and int8, each [rows, labels]."""
    errors = np.concatenate([margin_errors(*pair) for pair in pairs])
    centred = np.concatenate([_centred(int8 - fp32).ravel() for fp32, int8 in pairs])
    return MarginBound(
        scoring=rule,
        num_rows=len(errors),
        max_labels=max(fp32.shape[1] for fp32, _ in pairs),
        bound=float(errors.max()),
        median_error=float(np.median(np.abs(centred))),
        confidence=CONFIDENCE,
        beyond_share=float(1 - (1 - CONFIDENCE) ** (1 / len(errors))),
        labels_differ=int(sum((fp32.argmax(1) != int8.argmax(1)).sum() for fp32, int8 in pairs)),
    )


def margin_errors(fp32: NDArray[np.float64], int8: NDArray[np.float64]) -> NDArray[np.float64]:
    """Per row, the largest change of the distance between the int8 winner and another label, in nats."""
    change = int8 - fp32
    at_winner = np.take_along_axis(change, int8.argmax(1)[:, None], axis=1)
    return cast("NDArray[np.float64]", np.abs(change - at_winner).max(axis=1))


def _fits(classifier: Classifier, sample: Sample) -> bool:
    """False where this model's tokens cannot tell the labels apart under the sample's rule."""
    try:
        classifier.prepare(sample.task)
    except TaskError:
        return False
    return True


def _centred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values - values.mean(axis=1, keepdims=True)


def _logprobs(classifier: Classifier, sample: Sample) -> NDArray[np.float64]:
    runner = classifier.prepare(sample.task, RunOptions(all_scores=True))
    encoded, _ = runner.encode([Ticket(row, None, text) for row, text in enumerate(sample.texts)])
    return np.stack([scored.logprobs for scored in runner.score_all(encoded)])
