"""The scoring rules as the reference understands them: which tokens follow the prompt, and how they are weighed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slm_export.reference_prompt import ReferencePrompts
from slm_runtime.errors import LabelError
from slm_runtime.task import Task

Path = tuple[int, ...]
Tail = tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """A task in tokens. `paths` [C] are the tokens whose log-probabilities make up each label's.

    `allowed` holds, for every beginning of a path, the tokens among which the next one is chosen; None stands for the
    whole vocabulary. `prior` [C] in nats and `temperature` are the task's calibration.
    """

    prompts: ReferencePrompts
    labels: tuple[str, ...]
    rule: str
    paths: tuple[Path, ...]
    allowed: Mapping[Path, Sequence[int]] | None
    temperature: float
    prior: tuple[float, ...]

    @property
    def tails(self) -> tuple[Tail, ...]:
        """What has to be appended to a prompt, each once: a path's last token is predicted, never read."""
        return tuple(dict.fromkeys(path[:-1] for path in self.paths))

    def logprobs(self, logits: Mapping[Tail, Tensor]) -> NDArray[np.float64]:
        """[C] in nats, from the logits [1 + len(tail), V] of every tail."""
        return np.array([self._logprob(path, logits[path[:-1]].double()) for path in self.paths])

    def _logprob(self, path: Path, logits: Tensor) -> float:
        total = 0.0
        for depth, token in enumerate(path):
            choices = logits[depth]
            if self.allowed is not None:
                choices = choices[torch.tensor(self.allowed[path[:depth]])]
            total += float(logits[depth, token] - torch.logsumexp(choices, dim=-1))
        return total


def ask(prompts: ReferencePrompts, task: Task) -> Question:
    """`task` as a question.

    Raises:
        LabelError: the rule is `first-token` and two labels begin with the same token, or two have the same tokens.
    """
    tokens = [tuple(prompts.label_ids(label)) for label in task.labels]
    if len(set(tokens)) < len(tokens):
        raise LabelError(f"two of the labels {list(task.labels)} have the same tokens; rename one")
    firsts_differ = len({path[0] for path in tokens}) == len(tokens)
    rule = task.scoring
    if rule == "auto":
        rule = "first-token" if firsts_differ else "sequence"
    if rule == "first-token" and not firsts_differ:
        raise LabelError("two labels begin with the same token; use --scoring sequence or constrained")
    if rule == "first-token":
        paths = tuple(path[:1] for path in tokens)
    else:
        end = prompts.end_of_turn_id()
        paths = tuple((*path, end) for path in tokens)
    allowed = None if rule == "sequence" else _allowed(paths)
    prior = task.calibration.prior or (0.0,) * len(task.labels)
    return Question(prompts, task.labels, rule, paths, allowed, task.calibration.temperature, prior)


def _allowed(paths: Sequence[Path]) -> dict[Path, list[int]]:
    following: dict[Path, list[int]] = {}
    for path in paths:
        for depth, token in enumerate(path):
            tokens = following.setdefault(path[:depth], [])
            if token not in tokens:
                tokens.append(token)
    return following
