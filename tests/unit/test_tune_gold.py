"""Rows with right labels: read, checked, split."""

from pathlib import Path

import pytest

from slm_runtime.errors import InputError
from slm_runtime.tune_gold import GoldRow, is_for_fitting, read_gold

LABELS = ("bug", "refund")


def read(path: Path, **flags):
    return read_gold(path, LABELS, **{"text_column": "text", "gold_column": "label", **flags})


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_rows_without_gold_or_text_are_left_out(tmp_path: Path) -> None:
    gold = read(written(tmp_path, "g.csv", "text,label\nit broke, bug \n,refund\nmoney,refund\nno idea,\n"))
    assert gold.rows == (GoldRow("it broke", 0), GoldRow("money", 1))
    assert (gold.name, gold.num_rows, gold.num_without_gold, len(gold.sha256)) == ("g.csv", 4, 1, 64)


def test_json_lines_and_the_limit(tmp_path: Path) -> None:
    path = written(tmp_path, "g.jsonl", '{"text": "a", "is": "bug"}\n{"text": "b"}\n{"text": "c", "is": "refund"}\n')
    assert len(read(path, gold_column="is").rows) == 2
    assert read(path, gold_column="is", limit=2).rows == (GoldRow("a", 0),)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("g.csv", "text,kind\na,bug\n", "no column 'label'; the header has: 'text', 'kind'"),
        ("g.jsonl", '{"text": "a"}\n', "no row has a 'label'"),
        ("g.csv", "text,label\na,Bug\nb,bug\nc,x\nd,x\ne,y\nf,z\n", r"5 rows .* \('Bug', 'x', 'y' and 1 more\)"),
        ("none", "", "no such file|says no format"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_error(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(written(tmp_path, name, text))
    assert name in str(caught.value)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.csv")


def test_the_halves_depend_on_text_and_seed_alone() -> None:
    texts = [f"ticket {number}" for number in range(1000)]
    half = [is_for_fitting(text, 0) for text in texts]
    assert 430 < sum(half) < 570
    assert half == [is_for_fitting(f"  {text.replace(' ', chr(10))} ", 0) for text in texts], "only white space differs"
    assert half != [is_for_fitting(text, 1) for text in texts]
    assert isinstance(is_for_fitting("half a pair: \ud800", 0), bool)
