"""The page: everything from data goes through `visible` and is escaped, wherever the template puts it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from slm_runtime.report.canvas import Picture
from slm_runtime.report.gold import LabelQuality
from slm_runtime.report.tally import CloseCall, Reason
from slm_runtime.report.visible import cut, visible

LABEL_CHARS = 80
SHORT_CHARS = 12
NOTHING = "\u2013"
_PART = re.compile(r"[^\s_./:-]{0,16}[\s_./:-]*", re.DOTALL)


@dataclass(frozen=True)
class Fact:
    """One figure of a list: what it is, its value as text, what else should be known."""

    name: str
    value: str
    hint: str = ""


@dataclass(frozen=True)
class GoldSection:
    """The comparison with gold labels; lists are cut to what can be read, hints say so."""

    summary: str
    facts: Sequence[Fact]
    labels: Sequence[LabelQuality]
    label_hint: str
    matrix: Picture | None
    confusions: Sequence[tuple[str, str, int]]
    confusions_hint: str
    unknown: Sequence[tuple[str, int]]
    unknown_hint: str


@dataclass(frozen=True)
class Page:
    """What the template shows. `origin` holds (name, value), `sections` (id, title), a picture of None is left out."""

    name: str
    version: str
    origin: Sequence[tuple[str, str]]
    sections: Sequence[tuple[str, str]]
    notes: Sequence[str]
    facts: Sequence[Fact]
    gold: GoldSection | None
    shares: Picture | None
    shares_caption: str
    labels: Sequence[tuple[str, int, str]]
    labels_caption: str
    unlabelled: Sequence[tuple[str, int, str]]
    margins: Picture | None
    margins_caption: str
    margin_limits: Sequence[tuple[str, int, str]]
    prompts: Picture | None
    prompts_missing: str
    padding: Picture | None
    throughput: Picture | None
    work: Sequence[tuple[str, str]]
    show_review: bool
    close_calls: Sequence[CloseCall]
    review_caption: str
    reasons: Sequence[Reason]
    reasons_caption: str

    @property
    def has_ids(self) -> bool:
        return any(call.id is not None for call in self.close_calls)

    @property
    def has_runner_up(self) -> bool:
        return any(call.runner_up for call in self.close_calls)

    @property
    def has_texts(self) -> bool:
        return any(call.text is not None for call in self.close_calls)


def page_to_html(page: Page) -> str:
    """The whole page; it needs no other file."""
    css = files("slm_runtime.report").joinpath("page.css").read_text(encoding="utf-8")
    return _template().render(page=page, css=css)


def thousands(number: int) -> str:
    """12,345"""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """1 row, 12,345 rows"""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some_of(shown: int, number: int, noun: str) -> str:
    """A sentence on how much of a list is shown."""
    return f"{plural(number, noun)}." if shown == number else f"The first {shown:,} of {plural(number, noun)}."


def breakable(value: str | None) -> Markup:
    """A label or id, cut: a short one stays on its line, others may be broken where a part ends or is long."""
    shown = visible(cut(NOTHING if value is None else value, LABEL_CHARS))
    if len(shown) <= SHORT_CHARS:
        return Markup('<span class="short">{}</span>').format(shown)
    return Markup("<wbr>").join(_PART.findall(shown))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "markup": Markup,
        "name": breakable,
        "ratio": _ratio,
        "decimals": _decimals,
        "thousands": thousands,
    }
    return environment.from_string(files("slm_runtime.report").joinpath("page.html").read_text(encoding="utf-8"))


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return NOTHING if value is None else visible(str(value))


def _ratio(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _decimals(value: float | None, number: int) -> str | None:
    return None if value is None else f"{value:.{number}f}"
