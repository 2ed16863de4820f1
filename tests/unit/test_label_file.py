"""Label lists: what is tidied up silently, what is refused, and what only deserves a warning."""

from pathlib import Path

import pytest

from slm_runtime.errors import LabelError
from slm_runtime.label_file import case_twins, parse_labels, read_labels


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (
            b"\xef\xbb\xbfBilling\r\n\r\n technical issue \r\nbilling\r\n",
            ["Billing", "technical issue", "billing"],
        ),
        (b"a\rb\rc", ["a", "b", "c"]),
        ("a, b\n😀\n\u200b\nx\u2028y".encode(), ["a, b", "😀", "x\u2028y"]),
        (b"only", ["only"]),
        ("\n".join(f"l{i}" for i in range(300)).encode(), [f"l{i}" for i in range(300)]),
    ],
)
def test_c12_labels_of_a_file_are_trimmed_and_keep_order_and_spelling(
    tmp_path: Path, data: bytes, labels: list[str]
) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(data)
    assert read_labels(path) == labels


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"billing\nother\n\nbilling \n", r"'billing' is there twice, line 1 and line 4"),
        (b"\xef\xbb\xbf\r\n\n", "no label"),
        (b"", "no label"),
        (b"\xef\xbb\xbfa\ncaf\xe9\n", "line 2: byte 0xE9 is not UTF-8"),
    ],
)
def test_c12_a_label_file_that_cannot_be_used_says_where(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(data)
    with pytest.raises(LabelError, match=message):
        read_labels(path)


def test_a_missing_label_file_is_a_label_error(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="No such file"):
        read_labels(tmp_path / "absent.txt")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("billing, technical ,account", ["billing", "technical", "account"]),
        ('"returns, refunds", "say ""hi""",x', ["returns, refunds", 'say "hi"', "x"]),
        ('"two\nlines",x', ["two\nlines", "x"]),
    ],
)
def test_c12_labels_of_a_flag_may_be_quoted(text: str, labels: list[str]) -> None:
    assert parse_labels(text) == labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no label"),
        ("a,,b", "label 2 is empty"),
        ("a,b,", "label 3 is empty"),
        ("a, \u200b", "label 2 is empty"),
        ("a,b,a ", "'a' is there twice, label 1 and label 3"),
        ('a,"b', "write a label with a comma"),
        ("a\nb", "write a label with a comma"),
        ("caf\udce9", "label 1 .* is not valid UTF-8"),
    ],
)
def test_c12_a_label_flag_that_cannot_be_used_says_where(text: str, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        parse_labels(text)


def test_c12_case_twins_are_grouped_in_order() -> None:
    assert case_twins(["Billing", "x", "billing", "STRASSE", "straße", "y"]) == [
        ["Billing", "billing"],
        ["STRASSE", "straße"],
    ]
