"""What a batch of the service may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm_runtime.serve.budget import FRAME_TOKENS, BatchBudget, estimated_tokens, shared_chars


def admitted(texts: list[str], max_tokens: int, max_texts: int = 100, longest: int = 1000) -> int:
    budget = BatchBudget(max_tokens, max_texts, longest)
    return next((number for number, text in enumerate(texts) if not budget.admits(text)), len(texts))


def test_the_first_text_always_fits() -> None:
    assert admitted(["a" * 10_000, "b"], 5) == 1


def test_different_texts_fill_the_budget() -> None:
    texts = [f"{number} " + "x" * 38 for number in range(20)]
    assert admitted(texts, 5 * (FRAME_TOKENS + 10)) == 5


def test_equal_texts_count_once() -> None:
    assert admitted(["x" * 400] * 50, 120) == 50


def test_a_shared_beginning_counts_once() -> None:
    texts = [name + "x" * 400 for name in "abcdefgh"]
    assert admitted(texts, 300) == 2
    assert admitted(["x" * 400 + name for name in "abcdefgh"], 300) == 8


def test_no_text_counts_more_than_the_limit_leaves_of_it() -> None:
    assert admitted([name * 1_000_000 for name in "abcd"], 3 * (FRAME_TOKENS + 50), longest=50) == 3


def test_the_number_of_texts_is_limited() -> None:
    assert admitted(["same"] * 9, 1000, max_texts=4) == 4


@pytest.mark.parametrize(("text", "low", "high"), [("a b c d " * 10, 10, 40), ("日本語" * 10, 20, 60), ("", 0, 0)])
def test_estimates_are_of_the_right_size(text: str, low: int, high: int) -> None:
    assert low <= estimated_tokens(text) <= high


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_shared_characters_are_those_from_the_start(first: str, second: str) -> None:
    count = shared_chars(first, second)
    assert first[:count] == second[:count]
    assert count == min(len(first), len(second)) or first[count] != second[count]
