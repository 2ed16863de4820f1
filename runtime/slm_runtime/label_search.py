"""Large label trees, scored only where a label can still win.

The log-probability of the beginning of a label is an upper bound of the whole label's. So the labels that begin best
are scored in full first, and every label whose bound stays below the runner-up is out. Winner and runner-up are exact;
the others keep their bound. Bounds are compared without the task's prior, which moves a label and its bound alike.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm_runtime.calibration import NEUTRAL, Calibration
from slm_runtime.labels import LabelTree
from slm_runtime.scoring import Float64, log_sum_exp, stable_product

# From this many nodes on, scoring all of them in the ticket's own pass costs more than a typical short ticket.
MIN_TREE_NODES = 40
# A first guess takes the labels that begin at most this much worse (nats) than the best one, and at least two.
FIRST_GUESS_NATS = 0.6
# A bound must be clear of float32 noise to rule a label out.
BOUND_SLACK_NATS = 1e-3

Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Bounds:
    """`upper` [R, C]: upper bound of every label's log-probability; where `exact`, the log-probability itself.

    `rest` [R] bounds, after calibration, all the labels that are not exact together: those with the same known
    beginning share its mass.
    """

    upper: Float64
    exact: Bool
    rest: Float64


class LabelSearch:
    """The progress of R tickets through one label tree. `step_logprobs` [R, steps] holds NaN where nothing is known."""

    def __init__(self, tree: LabelTree, num_tickets: int, calibration: Calibration = NEUTRAL) -> None:
        self._tree = tree
        self._calibration = calibration
        self.step_logprobs: Float64 = np.full((num_tickets, len(tree.steps)), np.nan)
        self._membership = np.zeros((len(tree.steps), tree.num_labels))
        for i, step in enumerate(tree.steps):
            self._membership[i, list(step.labels)] = 1.0

    def bounds(self) -> Bounds:
        upper, exact = self._upper()
        return Bounds(upper, exact, np.array([self._joint(*ticket) for ticket in zip(upper, exact, strict=True)]))

    def _upper(self) -> tuple[Float64, Bool]:
        known = ~np.isnan(self.step_logprobs)
        upper = stable_product(np.where(known, self.step_logprobs, 0.0), self._membership)
        return upper, (~known).astype(np.float64) @ self._membership == 0

    def next_nodes(self) -> list[tuple[int, ...]]:
        """For every ticket the nodes to score next, ancestors excluded; empty where the ticket is decided."""
        upper, exact = self._upper()
        shifted = self._calibration.shifted(upper)
        return [self._choose(*ticket) for ticket in zip(shifted, exact, self.step_logprobs, strict=True)]

    def _choose(self, upper: Float64, exact: Bool, step_logprobs: Float64) -> tuple[int, ...]:
        if exact.all():
            return ()
        needed = min(2, len(upper))
        ranked = np.sort(upper[exact])[::-1]
        if len(ranked) >= needed:
            chosen = ~exact & (upper > ranked[needed - 1] - BOUND_SLACK_NATS)
        else:
            floor = min(upper.max() - FIRST_GUESS_NATS, np.sort(upper)[-needed])
            chosen = ~exact & (upper >= floor)
        labels = set(np.flatnonzero(chosen).tolist())
        unknown = np.isnan(step_logprobs)
        nodes = {
            s.node
            for s, miss in zip(self._tree.steps, unknown, strict=True)
            if miss and not labels.isdisjoint(s.labels)
        }
        return tuple(sorted(nodes))

    def _joint(self, upper: Float64, exact: Bool) -> float:
        """log of the sum over the distinct bounds: labels whose known steps are the same have the very same bound."""
        distinct = np.unique(upper[~exact])
        groups = [(float(bound), np.flatnonzero(~exact & (upper == bound))) for bound in distinct]
        joint = np.array([self._calibration.joint_bound(bound, labels) for bound, labels in groups])
        return float(log_sum_exp(joint)) if len(joint) else -np.inf
