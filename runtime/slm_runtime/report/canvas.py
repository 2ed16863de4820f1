"""matplotlib without its global state: a figure becomes inline SVG that takes its colours and font from the page."""

import html
import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slm_runtime.extra import require
from slm_runtime.report.visible import cut, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-ins that matplotlib takes for colours; the page's style sheet says what they are in light, dark and print.
INK, MUTED, GRID, ACCENT, SECOND = "#010203", "#010204", "#010205", "#010206", "#010207"
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", ACCENT: "--accent", SECOND: "--second"}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "slm-run report",
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}
WIDTH = 5.0  # inches, 360 points: about one point a pixel on a phone


@dataclass(frozen=True)
class Picture:
    """Inline SVG, safe to put into a page; `width` is its natural width in points."""

    svg: str
    width: float


def require_matplotlib() -> None:
    """Return when figures can be drawn. Raises InputError, which says what to install."""
    with _quiet():
        require("matplotlib", extra="report", purpose="the report")


@contextmanager
def drawing() -> Iterator[None]:
    """Our style alone, whatever the user's settings are; they are back afterwards."""
    with _quiet():
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(_STYLE)
            yield


def new_figure(height: float, *, width: float = WIDTH) -> "Figure":
    """A figure of this size in inches that keeps labels inside its edges."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def horizontal_bars(axes: "Axes", names: list[str], **ticks: Any) -> None:
    """Names of bars down the left side, the first on top."""
    axes.set_yticks(range(len(names)), names, **ticks)
    axes.set_ylim(len(names) - 0.4, -0.6)


def short_name(name: str, limit: int = 28) -> str:
    """A label as it may stand in a figure."""
    return cut(visible(cut(name, limit)), limit)


def to_picture(figure: "Figure", name: str, description: str) -> Picture:
    """The figure as SVG; `name` keeps its ids apart from those of other figures, `description` is read aloud."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<[^>]+>", lambda tag: _for_page(tag[0], name), svg)  # tags alone: labels are left as they are
    label = html.escape(visible(description))
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box, "matplotlib writes a viewBox"
    root = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {view_box[0]} role="img" aria-label="{label}">'
    return Picture(root + svg[svg.index(">") + 1 :].strip(), figure.get_figwidth() * 72)


def _for_page(tag: str, name: str) -> str:
    """A tag with ids of its own figure, and the colours of the page."""
    tag = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", tag)
    return re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _with_variable, tag)


def _with_variable(match: re.Match[str]) -> str:
    variable = _VARIABLES.get(match[2])
    return f"{match[1]}: var({variable})" if variable else match[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """No word on stderr about font caches and glyphs: text is drawn by the browser, with its fonts."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
