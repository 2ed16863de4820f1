"""The pictures of a report. Each one takes numbers and gives a `Picture`; draw them inside `canvas.drawing()`."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slm_runtime.report.canvas import (
    ACCENT,
    INK,
    MUTED,
    SECOND,
    Picture,
    horizontal_bars,
    new_figure,
    short_name,
    to_picture,
)
from slm_runtime.report.run_facts import LengthTokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 40
LENGTH_BINS = 24
BAR_INCHES = 0.26


def label_shares(bars: Sequence[tuple[str, int]], grey_bars: Sequence[tuple[str, int]], num_rows: int) -> Picture:
    """Rows per label, then those that no label names (others, none, failed) in grey."""
    names = [short_name(name) for name, _ in (*bars, *grey_bars)]
    counts = [count for _, count in (*bars, *grey_bars)]
    figure = new_figure(0.3 + BAR_INCHES * len(names))
    axes = figure.subplots()
    colors = [ACCENT] * len(bars) + [MUTED] * len(grey_bars)
    axes.barh(range(len(names)), counts, color=colors, height=0.62)
    horizontal_bars(axes, names, color=INK)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    right = axes.twinx()
    horizontal_bars(right, [f"{count:,}  ({share(count, num_rows)})" for count in counts])
    right.spines[["left", "bottom"]].set_visible(False)
    described = "; ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True))
    return to_picture(figure, "shares", f"Bar chart, rows per label: {described}")


def margin_histogram(margins: NDArray[np.float64]) -> Picture:
    """Rows by margin; a few far ones do not make the others a single bar."""
    margins = np.clip(margins, 0, 1e6)
    end = _end_of_axis(margins)
    figure = new_figure(2.5)
    axes = figure.subplots()
    edges = np.linspace(0, end, BINS + 1)
    _histogram(axes, np.minimum(margins, end), edges)
    _finish(axes, whole_x=False)
    median = float(np.median(margins))
    _marker(axes, median, f"median {median:.2f}", vertical=True)
    axes.set_xlabel("margin, nats" + (f" (last bar: {edges[-2]:.2f} and more)" if margins.max() > end else ""))
    axes.set_ylabel("rows")
    low, high = np.quantile(margins, [0.05, 0.95])
    return to_picture(
        figure,
        "margins",
        f"Histogram of {len(margins):,} margins: median {median:.2f} nats, from {low:.2f} (5th percentile) to "
        f"{high:.2f} (95th)",
    )


def prompt_histogram(lengths: Mapping[int, int]) -> Picture:
    """Rows by the length of their prompt in tokens."""
    values = np.array(sorted(lengths))
    counts = np.array([lengths[length] for length in values.tolist()])
    usual = values[np.searchsorted(counts.cumsum(), 0.99 * counts.sum())]
    end = int(min(values[-1], 1.5 * usual))
    edges = _whole_edges(int(values[0]), end, BINS)
    figure = new_figure(2.5)
    axes = figure.subplots()
    _histogram(axes, np.minimum(values, end), edges, counts)
    _finish(axes)
    axes.set_xlabel(
        "prompt length, tokens" + (f" (last bar: {edges[-2] + 0.5:,.0f} and more)" if values[-1] > end else "")
    )
    axes.set_ylabel("rows")
    mean = float((values * counts).sum() / counts.sum())
    return to_picture(
        figure,
        "prompts",
        f"Histogram of prompt lengths: {values[0]:,} to {values[-1]:,} tokens, {mean:,.0f} on average",
    )


def padding_by_length(lengths: Sequence[LengthTokens]) -> Picture:
    """Tokens that were processed by row length, padding apart, and above it their share."""
    edges = _whole_edges(lengths[0].length, lengths[-1].length, LENGTH_BINS)
    at = [entry.length for entry in lengths]
    real = np.histogram(at, edges, weights=[entry.real for entry in lengths])[0]
    processed = np.histogram(at, edges, weights=[entry.processed for entry in lengths])[0]
    padding = np.maximum(processed - real, 0)
    total = 1 - real.sum() / processed.sum()
    figure = new_figure(3.3)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.2])
    shares = 100 * padding / np.maximum(processed, 1)
    upper.bar(edges[:-1], shares, np.diff(edges) * 0.92, align="edge", color=SECOND)
    upper.set_ylim(0, max(1.0, 1.25 * float(shares.max())))
    upper.set_ylabel("padding, %")
    _marker(upper, 100 * total, f"all\n{total:.1%}", vertical=False)
    widths = np.diff(edges) * 0.92
    lower.bar(edges[:-1], real, widths, align="edge", color=ACCENT, label="prompts")
    lower.bar(edges[:-1], padding, widths, bottom=real, align="edge", color=SECOND, label="padding")
    lower.set_ylabel("tokens")
    lower.set_xlabel("length of the model's rows, tokens")
    figure.legend(frameon=False, fontsize=8.5, loc="outside upper right", ncols=2, labelcolor=MUTED, handlelength=1.0)
    _finish(upper, whole_y=False)
    _finish(lower)
    return to_picture(
        figure,
        "padding",
        f"Padding by row length, {lengths[0].length:,} to {lengths[-1].length:,} tokens: {total:.1%} of "
        f"{processed.sum():,.0f} processed tokens, {shares.max():.1f} % in the worst range of lengths",
    )


def throughput(timeline: Sequence[tuple[float, float]]) -> Picture:
    """Rows per second between the points of the timeline."""
    seconds, rows = np.array([point[0] for point in timeline]), np.array([point[1] for point in timeline])
    rates = np.diff(rows) / np.diff(seconds)
    mean = float(rows[-1] / seconds[-1])
    figure = new_figure(2.5)
    axes = figure.subplots()
    axes.stairs(rates, seconds, fill=True, color=ACCENT, alpha=0.25)
    axes.stairs(rates, seconds, color=ACCENT, linewidth=1.4, baseline=None)
    axes.set_ylim(0, 1.18 * float(rates.max()) or 1.0)
    axes.set_xlim(0, seconds[-1])
    _marker(axes, mean, f"mean\n{mean:,.1f}", vertical=False)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("rows per second")
    _finish(axes, whole_x=False, whole_y=False)
    return to_picture(
        figure,
        "throughput",
        f"Rows per second over {seconds[-1]:,.1f} seconds: mean {mean:,.1f}, "
        f"from {rates.min():,.1f} to {rates.max():,.1f}",
    )


def confusion_matrix(golds: Sequence[str], answers: Sequence[str], counts: NDArray[np.int64]) -> Picture:
    """Counts by gold label (down) and answer (across); colour is the share of the gold label's rows."""
    from matplotlib.patches import Rectangle

    cell = 0.34
    figure = new_figure(1.9 + cell * len(golds), width=2.3 + cell * len(answers))
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = ACCENT if golds[row] == answers[column] else SECOND
            # Never opaque, so that the number on it can be read in every colour scheme.
            alpha = 0.10 + 0.45 * float(shares[row, column])
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, alpha=alpha, linewidth=0))
            axes.text(column, row, compact(int(count)), ha="center", va="center", fontsize=8)
    axes.set_xlim(-0.5, len(answers) - 0.5)
    axes.set_xticks(range(len(answers)), [short_name(name, 24) for name in answers], rotation=90)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(golds)), [short_name(name, 24) for name in golds])
    axes.set_ylim(len(golds) - 0.5, -0.5)
    axes.tick_params(colors=INK)
    for edge in range(1, max(len(golds), len(answers))):
        if edge < len(golds):
            axes.axhline(edge - 0.5, color=MUTED, linewidth=0.3, alpha=0.5)
        if edge < len(answers):
            axes.axvline(edge - 0.5, color=MUTED, linewidth=0.3, alpha=0.5)
    axes.set_ylabel("gold label")
    axes.set_title("answer", fontsize=9, color=MUTED)
    axes.spines[:].set_visible(True)
    right = sum(int(counts[row, answers.index(gold)]) for row, gold in enumerate(golds) if gold in answers)
    return to_picture(
        figure, "confusion", f"Confusion matrix of {len(golds)} gold labels: {right:,} of {counts.sum():,} rows right"
    )


def share(part: float, whole: float) -> str:
    """A percentage with one decimal."""
    return f"{part / whole:.1%}" if whole else "0.0%"


def compact(count: int) -> str:
    """At most four characters: 950, 12k, 3.4M."""
    for unit, size in (("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count // size}{unit}"
    return str(count)


def _end_of_axis(margins: NDArray[np.float64]) -> float:
    """The largest margin, or one near the 99th percentile when the largest is far beyond."""
    largest, usual = float(margins.max()), float(np.quantile(margins, 0.99))
    return (1.25 * usual if largest > 1.5 * usual > 0 else largest) or 1.0


def _whole_edges(first: int, last: int, num_bins: int) -> NDArray[np.float64]:
    """Edges between whole numbers, all bins of one width."""
    width = max(1, math.ceil((last - first + 1) / num_bins))
    num_edges = math.ceil((last - first + 1) / width) + 1
    return np.asarray(first - 0.5 + width * np.arange(num_edges), dtype=np.float64)


def _histogram(
    axes: "Axes", values: NDArray[np.generic], edges: NDArray[np.float64], weights: NDArray[np.int64] | None = None
) -> None:
    counts, _ = np.histogram(values, edges, weights=weights)
    axes.bar(edges[:-1], counts, np.diff(edges) * 0.92, align="edge", color=ACCENT)
    axes.set_ylim(0, 1.15 * float(counts.max()))


def _finish(axes: "Axes", *, whole_x: bool = True, whole_y: bool = True) -> None:
    """Grid and ticks; no fractions on an axis that counts."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.grid(visible=True, axis="y")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=whole_x))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=whole_y))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _marker(axes: "Axes", value: float, text: str, *, vertical: bool) -> None:
    """A dashed line at a value, and what it is."""
    if vertical:
        axes.axvline(value, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(text, (value, 1), xycoords=("data", "axes fraction"), xytext=(4, -3), textcoords="offset points",
                      va="top", fontsize=8.5)  # fmt: skip
    else:
        axes.axhline(value, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(text, (1, value), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=8.5)  # fmt: skip
