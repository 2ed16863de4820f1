"""Whatever labels, scores and calibration: the search finds winner and runner-up as the full scores have them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slm_runtime.calibration import NEUTRAL, Calibration
from slm_runtime.label_search import LabelSearch
from slm_runtime.labels import LabelTree, build_label_tree
from slm_runtime.scoring import log_sum_exp

LABELS = st.lists(st.lists(st.integers(5, 8), min_size=1, max_size=4).map(tuple), min_size=2, max_size=20, unique=True)
RULES = st.sampled_from(["sequence", "constrained"])
END_OF_TURN = 9
NUM_TICKETS = 3


def step_logprobs(tree: LabelTree, generator: np.random.Generator) -> np.ndarray:
    """[R, steps] as a model might have them: every node's steps share a mass of at most 1."""
    values = generator.normal(0, 2, (NUM_TICKETS, len(tree.steps)))
    nodes = np.array([step.node for step in tree.steps])
    for node in tree.scored_nodes:
        mine = np.flatnonzero(nodes == node)
        values[:, mine] -= log_sum_exp(values[:, mine])[:, None]
        if tree.rule == "sequence":
            values[:, mine] -= generator.exponential(1.0, (NUM_TICKETS, 1))
    return values


def finished_search(tree: LabelTree, known: np.ndarray, calibration: Calibration) -> LabelSearch:
    """A search that was told about every node that it asked for."""
    search = LabelSearch(tree, NUM_TICKETS, calibration)
    nodes = np.array([step.node for step in tree.steps])
    search.step_logprobs[:, nodes == 0] = known[:, nodes == 0]
    for _ in range(len(tree.steps) + 1):
        if not any(chosen := search.next_nodes()):
            return search
        for ticket, wanted in enumerate(chosen):
            mine = np.isin(nodes, wanted)
            assert np.isnan(search.step_logprobs[ticket, mine]).any() or not wanted, "asked for what is known"
            search.step_logprobs[ticket, mine] = known[ticket, mine]
    raise AssertionError("the search does not end")


def full_logprobs(tree: LabelTree, known: np.ndarray) -> np.ndarray:
    totals = np.zeros((NUM_TICKETS, tree.num_labels))
    for i, step in enumerate(tree.steps):
        totals[:, list(step.labels)] += known[:, [i]]
    return totals


@given(LABELS, RULES, st.floats(0.2, 5), st.floats(0, 4), st.integers(0, 2**32 - 1))
def test_winner_and_runner_up_are_exact(labels, rule, temperature: float, deviation: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    tree = build_label_tree(rule, labels, END_OF_TURN)
    calibration = Calibration(temperature, tuple(generator.normal(0, deviation, len(labels)).tolist()))
    known = step_logprobs(tree, generator)
    bounds = finished_search(tree, known, calibration).bounds()
    full = full_logprobs(tree, known)
    calibrated = (full - np.array(calibration.prior)) / temperature
    for ticket in range(NUM_TICKETS):
        exact = bounds.exact[ticket]
        np.testing.assert_allclose(bounds.upper[ticket][exact], full[ticket][exact], atol=1e-9)
        winner, runner_up = np.argsort(-calibrated[ticket], kind="stable")[:2]
        assert exact[winner]
        assert exact[runner_up]
        assert (bounds.upper[ticket] >= full[ticket] - 1e-9).all()
        if not exact.all():
            ruled_out = float(log_sum_exp(calibrated[ticket][~exact]))
            assert bounds.rest[ticket] >= ruled_out - 1e-9, "else the score would be no lower bound"


@given(LABELS, RULES, st.integers(0, 2**32 - 1))
def test_without_calibration_shared_beginnings_count_once(labels, rule, seed: int) -> None:
    tree = build_label_tree(rule, labels, END_OF_TURN)
    bounds = finished_search(tree, step_logprobs(tree, np.random.default_rng(seed)), NEUTRAL).bounds()
    for upper, exact, rest in zip(bounds.upper, bounds.exact, bounds.rest, strict=True):
        distinct = np.unique(upper[~exact])
        assert rest == (log_sum_exp(distinct) if len(distinct) else -np.inf), "to the last bit"
