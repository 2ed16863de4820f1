"""Tasks made ready on one classifier: the service's own, which stays, and those that requests bring along."""

import dataclasses

from slm_runtime.classifier import Classifier, TaskRunner
from slm_runtime.options import RunOptions
from slm_runtime.task import Task

KEPT_RUNNERS = 16


class Runners:
    """The runner of every task. Of the tasks that come with requests the `KEPT_RUNNERS` used last are kept; they
    give every label a score and refuse texts that are too long.
    """

    def __init__(self, classifier: Classifier, main_task: Task, options: RunOptions) -> None:
        self.model = classifier.bundle.manifest.model.id
        self._classifier = classifier
        self._main_task = main_task
        self._main = classifier.prepare(main_task, options)
        self._options = dataclasses.replace(options, all_scores=True, truncate="error")
        self._others: dict[Task, TaskRunner] = {}

    def of(self, task: Task) -> TaskRunner:
        """The runner of `task`. Raises SlmError when the task does not fit the model."""
        if task == self._main_task:
            return self._main
        runner = self._others.pop(task, None) or self._classifier.prepare(task, self._options)
        self._others[task] = runner  # used last
        while len(self._others) > KEPT_RUNNERS:
            del self._others[next(iter(self._others))]
        return runner
