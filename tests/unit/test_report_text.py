"""Text that attacks the reader: unseen characters are shown, figures do not interpret it."""

import html
import re
import unicodedata
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm_runtime.report import figures
from slm_runtime.report.canvas import drawing
from slm_runtime.report.page import breakable
from slm_runtime.report.run_facts import LengthTokens
from slm_runtime.report.visible import cut, visible

HOSTILE = [
    "<script>document.title='pwned'</script>",
    "$\\frac{x$",
    "$a_b$ & <b>",
    "\u202egnp.exe\u2066",
    "nul \x00 escape \x1b[31m next \x85 \ufeff\u200b",
    "\ud800 \uffff",
    "漢字 עברית 👩\u200d💻 \U000e0041",
    "</svg></style>",
    "_hidden by matplotlib's rule for legends",
    'id="a" style="fill: #010203"',
]

DRAWN = {"svg", "defs", "g", "path", "use", "text", "clipPath", "rect"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 漢字, 😀", "plain, é, 漢字, 😀"),
        ("a\nb\r\nc\td", "a\u21b5 b\u21b5 c\u21e5d"),
        ("\x00\x1b\x7f\x85", "[U+0000][U+001B][U+007F][U+0085]"),
        ("\u202e\u2066\u200f\ufeff\u2028", "[U+202E][U+2066][U+200F][U+FEFF][U+2028]"),
        ("\U000e0041", "[U+E0041]"),
        ("\ud83d \uffff", "\ufffd \ufffd"),
        ("👩\u200d💻", "👩\u200d💻"),  # joined, and Persian needs its non-joiner
    ],
)
def test_what_cannot_be_seen_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters()))
def test_nothing_shown_controls_or_reorders(text: str) -> None:
    unseen = [char for char in visible(text) if unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}]
    turning = [char for char in visible(text) if unicodedata.bidirectional(char) in {"RLO", "LRO", "RLE", "LRE", "PDF"}]
    assert unseen + turning == []
    visible(text).encode()


@given(st.text(), st.integers(1, 20))
def test_a_cut_text_is_no_longer_than_asked(text: str, limit: int) -> None:
    assert len(cut(text, limit)) <= limit
    assert (cut(text, limit) == text) == (len(text) <= limit)


@given(st.text(max_size=60))
def test_a_name_that_may_be_broken_is_escaped_and_whole(text: str) -> None:
    markup = re.sub(r'<wbr>|^<span class="short">|</span>$', "", str(breakable(text)))
    assert not re.search("[<>]", markup)
    assert html.unescape(markup) == visible(text)


def pictures() -> list[figures.Picture]:
    timeline = [(0.0, 0.0), (1.0, 10.0), (2.5, 40.0)]
    with drawing():
        return [
            figures.label_shares([(name, 3) for name in HOSTILE], [("(failed)", 1)], 31),
            figures.margin_histogram(np.array([0.0, 0.5, 0.7, 30.0])),
            figures.margin_histogram(np.array([0.0])),
            figures.margin_histogram(np.array([-1.0, 1e308])),
            figures.prompt_histogram({5: 1}),
            figures.prompt_histogram({20: 900, 40: 90, 5_000: 1}),
            figures.padding_by_length([LengthTokens(7, 7, 7)]),
            figures.padding_by_length([LengthTokens(7, 70, 77), LengthTokens(700, 650, 700)]),
            figures.throughput(timeline),
            figures.confusion_matrix(HOSTILE, [*HOSTILE, "(failed)"], np.ones((10, 11), dtype=np.int64)),
        ]


@pytest.fixture(scope="module")
def drawn() -> list[figures.Picture]:
    return pictures()


def test_figures_are_well_formed_and_named(drawn: list[figures.Picture]) -> None:
    for picture in drawn:
        root = ET.fromstring(picture.svg)
        assert root.get("role") == "img"
        assert len(root.get("aria-label") or "") > 20


def test_figures_run_nothing_and_load_nothing(drawn: list[figures.Picture]) -> None:
    for picture in drawn:
        elements = list(ET.fromstring(picture.svg).iter())
        assert {element.tag.rpartition("}")[2] for element in elements} <= DRAWN
        for element in elements:
            for name, value in element.attrib.items():
                assert not name.lower().startswith("on")
                assert "href" not in name or value.startswith("#")


def test_labels_in_figures_are_text_and_no_formulas(drawn: list[figures.Picture]) -> None:
    texts = {element.text for element in ET.fromstring(drawn[0].svg).iter() if element.tag.endswith("text")}
    assert {"$\\frac{x$", "$a_b$ & <b>", "</svg></style>", "[U+202E]gnp.exe[U+2066]", HOSTILE[-1]} <= texts


def test_figures_take_their_colours_from_the_page(drawn: list[figures.Picture]) -> None:
    for picture in drawn:
        styles = [element.get("style") or "" for element in ET.fromstring(picture.svg).iter()]
        assert any("var(--accent)" in style for style in styles)
        assert not [style for style in styles if "#0102" in style]


def test_drawing_says_nothing_and_neither_takes_nor_leaves_settings(
    drawn: list[figures.Picture], capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 31, "text.usetex": True}):
        assert pictures() == drawn  # neither the settings nor the time of day show
        assert mpl.rcParams["font.size"] == 31
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []
