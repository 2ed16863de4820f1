"""Hidden states to label scores: pure numpy, in float64, on the few logits that count."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slm_runtime.labels import LabelTree

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class LabelScores:
    """`logprobs` [R, C] in nats, by the tree's rule; `mass` [R], the labels' share of everything the model might say.

    Under `first-token` the logprobs are normalised over the labels' first tokens; under `constrained` over the tokens
    that the label set allows; under `sequence` over the whole vocabulary, and only there `mass` is known.
    """

    logprobs: Float64
    mass: Float64 | None


# The order in which a matrix product adds up depends on its size: what that changes is far behind these decimals.
KEPT_DECIMALS = 9


def stable_product(left: NDArray[Any], right: NDArray[Any]) -> Float64:
    """`left` [..., X] times `right` [X, Y] in float64: a row's result is the same whatever rows stand beside it."""
    return np.round(left.astype(np.float64) @ right.astype(np.float64), KEPT_DECIMALS)


def step_logits(tree: LabelTree, hidden: Float32, step_rows: Float32) -> Float64:
    """Logit of every step [R, steps], from `hidden` [R, scored nodes, D] and the steps' head rows [steps, D]."""
    logits = np.empty((hidden.shape[0], len(tree.steps)))
    step_nodes = np.array([step.node for step in tree.steps])
    for position, node in enumerate(tree.scored_nodes):
        mine = np.flatnonzero(step_nodes == node)
        logits[:, mine] = stable_product(hidden[:, position], step_rows[mine].T)
    return logits


def label_scores(tree: LabelTree, logits: Float64, log_norm: Float64 | None) -> LabelScores:
    """Scores from step logits [R, steps]; `log_norm` [R, scored nodes] is the full-vocabulary log-normaliser.

    `log_norm` is needed by the rule `sequence` and by no other.
    """
    positions = {node: i for i, node in enumerate(tree.scored_nodes)}
    step_positions = np.array([positions[step.node] for step in tree.steps])
    if tree.rule == "sequence":
        assert log_norm is not None
        norm = log_norm[:, step_positions]
    else:
        norm = np.empty_like(logits)
        for position in range(len(positions)):
            mine = np.flatnonzero(step_positions == position)
            norm[:, mine] = log_sum_exp(logits[:, mine])[:, None]
    steps = logits - norm
    membership = np.zeros((len(tree.steps), tree.num_labels))
    for i, step in enumerate(tree.steps):
        membership[i, list(step.labels)] = 1.0
    logprobs = stable_product(steps, membership)
    mass = np.exp(log_sum_exp(logprobs)) if tree.rule == "sequence" else None
    return LabelScores(logprobs, mass)


def log_sum_exp(values: Float64) -> Float64:
    """log(sum(exp(values))) over the last axis, which is not empty."""
    largest = values.max(axis=-1, keepdims=True)
    return np.log(np.exp(values - largest).sum(axis=-1)) + largest[..., 0]
