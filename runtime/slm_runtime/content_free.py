"""What a prompt says about texts that say nothing: the model's own leaning, found without any gold label."""

import dataclasses

import numpy as np

from slm_runtime.calibration import NEUTRAL
from slm_runtime.classifier import Classifier
from slm_runtime.errors import InputError
from slm_runtime.options import RunOptions
from slm_runtime.task import Task

# A blank text would be the purest, but is no ticket.
CONTENT_FREE_TEXTS = ("N/A", "[MASK]", "...")


def content_free_prior(classifier: Classifier, task: Task) -> tuple[float, ...]:
    """[C] in nats: the mean, over `CONTENT_FREE_TEXTS`, of the labels' log-probabilities among the labels.

    The task's own calibration is left out.

    Raises:
        TaskError: as for `Classifier.prepare`.
        InputError: such a text cannot be classified by this task.
    """
    bare = dataclasses.replace(task, calibration=NEUTRAL)
    predictions = classifier.classify(CONTENT_FREE_TEXTS, bare, RunOptions(all_scores=True))
    if failed := [p for p in predictions if p.error is not None]:
        raise InputError(f"the text {CONTENT_FREE_TEXTS[failed[0].row]!r} cannot be classified: {failed[0].error}")
    logprobs = np.log([list(p.scores.values()) for p in predictions])
    return tuple(logprobs.mean(axis=0).tolist())
