"""Whatever the tickets, fixed shapes and strategy: every sequence once, within a shape, and seeing its own tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planning import COST, END_OF_TURN, LABELS, RULES, STRATEGIES, limits, node_paths, visible_tokens

from slm_runtime.coreml.planning import StaticPlanner
from slm_runtime.coreml.room import Bucket, Room
from slm_runtime.labels import build_label_tree
from slm_runtime.model_input import batch_input
from slm_runtime.planning import Strategy

BUCKETS = st.builds(Bucket, st.sampled_from([32, 64, 128]), st.sampled_from([16, 64, 128]))
ROOMS = st.lists(BUCKETS, min_size=1, max_size=4, unique=True).map(lambda buckets: Room(tuple(sorted(buckets))))
TRUNKS = st.sampled_from([(), (8,) * 20, (8,) * 50, (7,) * 110])
TAILS = st.lists(st.integers(1, 4), min_size=1, max_size=12).map(tuple)
SEQUENCES = st.lists(st.tuples(TRUNKS, TAILS).map(lambda parts: parts[0] + parts[1]), min_size=1, max_size=25)


@settings(max_examples=200)
@given(ROOMS, SEQUENCES, LABELS, RULES, STRATEGIES, st.integers(1, 200), st.integers(0, 16))
def test_every_scored_position_sees_its_sequence_and_label_path(
    room: Room,
    sequences: list[tuple[int, ...]],
    labels: list[tuple[int, ...]],
    rule: str,
    strategy: Strategy,
    budget: int,
    past: int,
) -> None:
    tree = build_label_tree(rule, labels, END_OF_TURN)
    branch_tokens = len(tree.token_ids)
    sequences = [s for s in sequences if room.tokens_to_skip(len(s), branch_tokens, past) is not None]
    paths = [node_paths(tree)[node] for node in tree.scored_nodes]
    planner = StaticPlanner(room, COST)
    done: list[int] = []
    for batch in planner.batches(sequences, tree, strategy, limits(budget, past)):
        (row,) = batch.rows
        seen_past = past + len(batch.trunk)
        bucket = room.bucket(len(row), seen_past)
        assert bucket is not None
        assert planner.price(1, len(row), seen_past) == COST.call(1, bucket.num_tokens, bucket.past_len)
        sees = batch_input(batch, seen_past).attention_bias[0, 0, :, seen_past:] == 0
        for scored, sequence in zip(row.scored, row.sequences, strict=True):
            own = sequences[sequence]
            assert own[: len(batch.trunk)] == batch.trunk
            for position, path in zip(scored, paths, strict=True):
                assert batch.trunk + visible_tokens(row, sees, position) == own + path
            done.append(int(sequence))
    assert sorted(done) == list(range(len(sequences)))


@settings(max_examples=300)
@given(ROOMS, st.integers(1, 400), st.integers(0, 140), st.integers(0, 140))
def test_what_is_said_to_fit_fits_and_nothing_else(room: Room, length: int, branch_tokens: int, past: int) -> None:
    skip = room.tokens_to_skip(length, branch_tokens, past)
    fitting = [s for s in range(length) if room.bucket(length - s + branch_tokens, past + s) is not None]
    assert skip == (fitting[0] if fitting else None)
    if skip is not None:  # a near tie is scored again whole, without a past
        assert room.tokens_to_skip(past + length, branch_tokens, 0) is not None
    longest = room.longest_prompt(branch_tokens, past)
    alone = [n for n in range(past + 1, 300) if room.tokens_to_skip(n - past, branch_tokens, past) is not None]
    assert longest == max(alone, default=0)


@given(ROOMS, st.integers(1, 300))
def test_a_past_made_in_pieces_costs_its_pieces(room: Room, length: int) -> None:
    planner, longest = StaticPlanner(room, COST), room.row_tokens(0)
    pieces = [longest] * (length // longest) + ([length % longest] if length % longest else [])
    assert planner.price(2, length, 0) == pytest.approx(2 * sum(planner.price(1, piece, 0) for piece in pieces))


def test_packing_takes_the_row_length_that_costs_least() -> None:
    """Forty tickets of 8 tokens: rows of 128 are three calls, rows of 32 are ten, and a lone ticket needs no 128."""
    room = Room((Bucket(32, 16), Bucket(128, 16)))
    planner, tree = StaticPlanner(room, COST), build_label_tree("first-token", [(5,), (6,)], END_OF_TURN)
    many = [tuple(np.random.default_rng(i).integers(1, 900, 8).tolist()) for i in range(40)]
    lengths = [batch.length for batch in planner.batches(many, tree, "packed", limits(768))]
    assert len(lengths) == 3
    (alone,) = planner.batches(many[:1], tree, "packed", limits(768))
    assert room.bucket(alone.length, 0) == Bucket(32, 16)
    assert max(batch.length for batch in planner.batches(many, tree, "packed", limits(50))) <= 32
