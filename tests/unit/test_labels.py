"""The label tree and the choice of rule."""

import pytest

from slm_runtime.errors import LabelError
from slm_runtime.labels import Step, build_label_tree, choose_rule

END = 99
ACCOUNT_ACCESS, ACCOUNT_CLOSURE, ACCOUNT, BUG = (1, 2), (1, 3), (1,), (4,)


def test_sequence_counts_every_token_and_the_end_of_turn() -> None:
    tree = build_label_tree("sequence", [ACCOUNT_ACCESS, ACCOUNT, BUG], END)
    assert tree.token_ids == (1, 2, 4)
    assert tree.parents == (0, 1, 0)
    assert set(tree.steps) == {
        Step(0, 1, (0, 1)),
        Step(0, 4, (2,)),
        Step(1, 2, (0,)),
        Step(1, END, (1,)),
        Step(2, END, (0,)),
        Step(3, END, (2,)),
    }


def test_constrained_computes_only_where_labels_part() -> None:
    tree = build_label_tree("constrained", [ACCOUNT_ACCESS, ACCOUNT_CLOSURE, BUG], END)
    assert tree.token_ids == (1,), "after 2, 3 and 4 the label is decided"
    assert tree.scored_nodes == (0, 1)


def test_constrained_with_one_label_decides_nothing() -> None:
    assert build_label_tree("constrained", [ACCOUNT_ACCESS], END).steps == ()


def test_first_token_scores_the_prompt_alone() -> None:
    tree = build_label_tree("first-token", [ACCOUNT_ACCESS, BUG], END)
    assert tree.token_ids == ()
    assert tree.steps == (Step(0, 1, (0,)), Step(0, 4, (1,)))


def test_c08_labels_that_share_their_first_token_are_scored_whole_or_refused() -> None:
    names = ["account_access", "account_closure"]
    assert choose_rule("auto", [ACCOUNT_ACCESS, ACCOUNT_CLOSURE], names) == "sequence"
    assert choose_rule("auto", [ACCOUNT_ACCESS, BUG], names) == "first-token"
    with pytest.raises(LabelError, match="'account_access' from 'account_closure'"):
        choose_rule("first-token", [ACCOUNT_ACCESS, ACCOUNT_CLOSURE], names)
