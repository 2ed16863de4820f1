"""Whatever the tickets and the strategy: every sequence is planned once, and sees exactly its own tokens."""

from typing import get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slm_runtime.cost import CostModel
from slm_runtime.labels import LabelTree, build_label_tree
from slm_runtime.layout import Row, shared_length
from slm_runtime.model_input import batch_input
from slm_runtime.planning import Limits, Strategy, plan_batches

TRUNKS = st.sampled_from([(), (), (8,) * 40, (8,) * 40 + (7,) * 60, (8,) * 1300])
TAILS = st.lists(st.integers(1, 4), min_size=1, max_size=12).map(tuple)
SEQUENCES = st.lists(st.tuples(TRUNKS, TAILS).map(lambda parts: parts[0] + parts[1]), max_size=25)
LABELS = st.lists(st.lists(st.integers(5, 7), min_size=1, max_size=4).map(tuple), min_size=2, max_size=6, unique=True)
RULES = st.sampled_from(["sequence", "constrained"])
STRATEGIES = st.sampled_from(get_args(Strategy))
END_OF_TURN = 9
COST = CostModel(pair_tokens=2.6e-4)


def limits(batch_tokens: int, past_len: int = 0) -> Limits:
    return Limits(batch_tokens, max_pairs=1_000_000, past_len=past_len)


def node_paths(tree: LabelTree) -> list[tuple[int, ...]]:
    """The label tokens from the root to every node, node 0 first."""
    paths: list[tuple[int, ...]] = [()]
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*paths[parent], token_id))
    return paths


def visible_tokens(row: Row, sees: np.ndarray, position: int) -> tuple[int, ...]:
    """What the token at `position` attends to, itself included, in order of depth."""
    seen = np.flatnonzero(sees[position])
    assert list(row.depths[seen]) == list(range(len(seen))), "one ancestor per depth"
    return tuple(row.token_ids[seen])


@settings(max_examples=150)
@given(SEQUENCES, LABELS, RULES, STRATEGIES, st.integers(1, 60), st.integers(0, 3))
def test_every_scored_position_sees_its_sequence_and_label_path(
    sequences: list[tuple[int, ...]],
    labels: list[tuple[int, ...]],
    rule: str,
    strategy: Strategy,
    budget: int,
    past: int,
) -> None:
    tree = build_label_tree(rule, labels, END_OF_TURN)
    paths = [node_paths(tree)[node] for node in tree.scored_nodes]
    done: list[int] = []
    for batch in plan_batches(sequences, tree, strategy, limits(budget, past), COST):
        seen_past = past + len(batch.trunk)
        bias = batch_input(batch, seen_past).attention_bias
        assert not bias[..., :seen_past].any(), "the past is seen by all"
        flat = batch.score_index().reshape(len(batch.sequences), len(paths))
        position = 0
        for i, row in enumerate(batch.rows):
            sees = bias[i, 0, :, seen_past:] == 0
            for sequence in row.sequences:
                done.append(int(sequence))
                for path, index in zip(paths, flat[position], strict=True):
                    assert index // batch.length == i
                    found = visible_tokens(row, sees, index % batch.length)
                    assert (*batch.trunk, *found) == (*sequences[sequence], *path)
                position += 1
    assert sorted(done) == list(range(len(sequences)))


@given(SEQUENCES, st.integers(1, 60), st.sampled_from(["packed", "bucketed"]))
def test_budget_counts_padding_and_longest_come_first(
    sequences: list[tuple[int, ...]], budget: int, strategy: Strategy
) -> None:
    tree = build_label_tree("first-token", [(5,), (6,)], END_OF_TURN)
    lengths: dict[tuple[int, ...], list[int]] = {}
    for batch in plan_batches(sequences, tree, strategy, limits(budget), COST):
        assert len(batch.rows) == 1 or batch.num_processed <= budget
        lengths.setdefault(batch.trunk, []).extend(len(row) for row in batch.rows)
    for of_one_trunk in lengths.values():
        assert of_one_trunk == sorted(of_one_trunk, reverse=True)


@given(SEQUENCES)
def test_packed_rows_hold_every_distinct_beginning_once(sequences: list[tuple[int, ...]]) -> None:
    distinct = [s for s in dict.fromkeys(sequences) if len(s) <= 12]
    if not distinct:
        return
    tree = build_label_tree("first-token", [(5,), (6,)], END_OF_TURN)
    (batch,) = plan_batches(distinct, tree, "packed", limits(10_000), COST)
    beginnings = {s[:length] for s in distinct for length in range(1, len(s) + 1)}
    assert batch.num_tokens == len(beginnings)


@given(st.lists(st.integers(1, 3), max_size=8).map(tuple), st.lists(st.integers(1, 3), max_size=8).map(tuple))
def test_shared_length_is_shared_and_maximal(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    length = shared_length(first, second)
    assert first[:length] == second[:length]
    assert length in (len(first), len(second)) or first[length] != second[length]


def test_a_padding_token_sees_itself_so_that_softmax_has_something_to_weigh() -> None:
    tree = build_label_tree("first-token", [(5,), (6,)], END_OF_TURN)
    (batch,) = plan_batches([(1, 2, 3), (4,)], tree, "naive", limits(100), COST)
    sees = batch_input(batch, 0).attention_bias[1, 0] == 0
    assert list(np.flatnonzero(sees[2])) == [2]
