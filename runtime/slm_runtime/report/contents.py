"""From counts and the record of the run to the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

from slm_runtime.report import figures
from slm_runtime.report.canvas import Picture, drawing
from slm_runtime.report.figures import share
from slm_runtime.report.gold_section import describe_quality
from slm_runtime.report.page import NOTHING, Fact, Page, plural, some_of, thousands
from slm_runtime.report.run_facts import RunFacts
from slm_runtime.report.tally import Tally

SHOWN_BARS = 24
SHOWN_LABELS = 200
SHOWN_REASONS = 20
MARGIN_LIMITS = (0.001, 0.01, 0.1, 0.25, 0.5, 1.0)
TIMINGS = {"opening the bundle": "load_s", "the run": "run_s", "of it in the model": "model_s"}
TOKENS = {
    "prompt tokens": "prompt_tokens",
    "processed tokens": "processed_tokens",
    "saved by the cached prefix": "prefix_saved_tokens",
    "saved by shared beginnings": "tree_saved_tokens",
}


@dataclass(frozen=True)
class Material:
    """What a report is made of. `has_details` says that the output holds token counts and flags, `review` how many
    close calls were asked for, `gold` which column holds gold labels, `notes` what the reader must know."""

    output: Path
    tally: Tally
    run: RunFacts
    has_details: bool
    review: int
    gold: str | None
    notes: Sequence[str]


def build_page(material: Material) -> Page:
    """The page of a report, its pictures drawn."""
    tally, run = material.tally, material.run
    calls, reasons = tally.close_calls.ranked(), tally.reasons.ranked()
    labels = _labels(tally, run)
    with drawing():
        quality = None
        if tally.gold is not None and material.gold is not None:
            quality = describe_quality(tally.gold.quality(), material.gold, labels_are_known=bool(run.labels))
        return Page(
            name=material.output.name,
            version=version("slm-runtime"),
            origin=_origin(material),
            sections=_sections(with_gold=quality is not None, with_review=material.review > 0),
            notes=[*material.notes, *_record_notes(tally, run, material.output)],
            facts=_facts(material),
            gold=quality,
            shares=_shares(tally) if tally.num_rows else None,
            shares_caption=_shares_caption(tally),
            labels=[(label, count, share(count, tally.num_rows)) for label, count in labels[:SHOWN_LABELS]],
            labels_caption=some_of(min(len(labels), SHOWN_LABELS), len(labels), "label"),
            unlabelled=[(name, count, share(count, tally.num_rows)) for name, count in _unlabelled(tally)],
            margins=figures.margin_histogram(np.array(tally.margins)) if tally.margins else None,
            margins_caption=f"{plural(len(tally.margins), 'row')} with a margin.",
            margin_limits=_margin_limits(tally),
            prompts=figures.prompt_histogram(tally.prompt_lengths) if tally.prompt_lengths else None,
            prompts_missing=_prompts_missing(material),
            padding=figures.padding_by_length(run.lengths) if run.lengths else None,
            throughput=figures.throughput(run.timeline) if run.timeline else None,
            work=_work(run),
            show_review=material.review > 0,
            close_calls=calls,
            review_caption=f"The closest {len(calls):,} of {plural(len(tally.margins), 'row')} with a margin.",
            reasons=reasons[:SHOWN_REASONS],
            reasons_caption=f"{plural(tally.num_failed, 'row')} failed. Reasons that differ in numbers only are one. "
            + some_of(min(len(reasons), SHOWN_REASONS), len(reasons), "reason"),
        )


def _origin(material: Material) -> list[tuple[str, str]]:
    """Where the labels come from, as far as it is known."""
    run = material.run
    written = datetime.fromtimestamp(material.output.stat().st_mtime, UTC)
    cpu, threads = run.text("machine", "cpu"), run.number("machine", "threads")
    found = {
        "Model": run.text("bundle", "id"),
        "Scoring rule": run.text("task", "scoring"),
        "Output written": f"{written:%Y-%m-%d %H:%M} UTC",
        "Machine": None if cpu is None else f"{cpu}" + ("" if threads is None else f", {threads:.0f} threads"),
        "Runtime": run.text("versions", "slm-runtime"),
    }
    return [(name, value) for name, value in found.items() if value]


def _sections(*, with_gold: bool, with_review: bool) -> list[tuple[str, str]]:
    every = [
        ("figures", "Key figures"),
        ("gold", "Gold labels"),
        ("labels", "Labels"),
        ("margins", "Margins"),
        ("lengths", "Lengths and padding"),
        ("throughput", "Throughput"),
        ("review", "Tickets to look at first"),
        ("errors", "Errors"),
    ]
    left_out = {name for name, wanted in (("gold", with_gold), ("review", with_review)) if not wanted}
    return [(name, title) for name, title in every if name not in left_out]


def _record_notes(tally: Tally, run: RunFacts, output: Path) -> list[str]:
    if not run:
        return [f"There is no {output.name}.run.json that can be read: model, speed, padding and memory are not known."]
    recorded = run.number("counts", "rows")
    if recorded is not None and recorded != tally.num_rows:
        return [f"{output.name}.run.json is about {recorded:,.0f} rows, the output has {tally.num_rows:,}."]
    return []


def _facts(material: Material) -> list[Fact]:
    tally, run = material.tally, material.run
    truncated: float | None = tally.num_truncated
    rechecked: float | None = tally.num_rechecked
    if not material.has_details:
        truncated, rechecked = run.number("counts", "truncated"), run.number("counts", "rechecked")
    recalled = run.number("counts", "recalled")
    run_s, peak_bytes, padding = (
        run.number("timings", "run_s"),
        run.number("peak_memory_bytes"),
        run.number("padding_share"),
    )
    return [
        Fact("rows", thousands(tally.num_rows), f"{recalled:,.0f} from an interrupted run" if recalled else ""),
        Fact("errors", thousands(tally.num_failed), share(tally.num_failed, tally.num_rows)),
        Fact("below threshold", thousands(tally.num_below_threshold), share(tally.num_below_threshold, tally.num_rows)),
        Fact("truncated", _number(truncated), "ticket text was cut off"),
        Fact("duplicates", _number(run.number("counts", "duplicates")), "scored once with their like"),
        Fact("re-checked", _number(rechecked), "near ties, scored again alone"),
        Fact("rows per second", _number(run.rows_per_s, 1), "" if run_s is None else f"{run_s:,.1f} s in all"),
        Fact("padding", NOTHING if padding is None else f"{padding:.1%}", "of the processed tokens"),
        Fact("peak memory", f"{peak_bytes / 1e6:,.0f} MB" if peak_bytes else NOTHING),
    ]


def _number(value: float | None, decimals: int = 0) -> str:
    return NOTHING if value is None else f"{value:,.{decimals}f}"


def _labels(tally: Tally, run: RunFacts) -> list[tuple[str, int]]:
    """Labels with their rows, the most frequent first; labels of the task that no row has come last."""
    counted = list(tally.labels.items())
    seen = {label for label, _ in counted}
    return counted + [(label, 0) for label in run.labels if label not in seen]


def _unlabelled(tally: Tally) -> list[tuple[str, int]]:
    found = [("(below threshold)", tally.num_below_threshold), ("(failed)", tally.num_failed)]
    return [(name, count) for name, count in found if count]


def _shares(tally: Tally) -> Picture:
    counted = list(tally.labels.items())
    shown, rest = counted[:SHOWN_BARS], counted[SHOWN_BARS:]
    others = [(f"({len(rest)} other labels)", sum(count for _, count in rest))] if rest else []
    return figures.label_shares(shown, others + _unlabelled(tally), tally.num_rows)


def _shares_caption(tally: Tally) -> str:
    return f"Share of {plural(tally.num_rows, 'row')}." + (" Grey: rows without a label." if _unlabelled(tally) else "")


def _margin_limits(tally: Tally) -> list[tuple[str, int, str]]:
    margins = np.array(tally.margins)
    counts = [int((margins < limit).sum()) for limit in MARGIN_LIMITS]
    pairs = zip(MARGIN_LIMITS, counts, strict=True)
    return [(f"{limit:g}", count, share(count, len(margins))) for limit, count in pairs]


def _work(run: RunFacts) -> list[tuple[str, str]]:
    """Seconds and tokens, as far as they were recorded."""
    seconds = {name: run.number("timings", key) for name, key in TIMINGS.items()}
    tokens = {name: run.number("counts", key) for name, key in TOKENS.items()}
    found = [(name, f"{value:,.1f} s") for name, value in seconds.items() if value is not None]
    return found + [(name, f"{value:,.0f}") for name, value in tokens.items() if value is not None]


def _prompts_missing(material: Material) -> str:
    if not material.has_details:
        return "CSV and TSV outputs hold no token counts; write JSONL to see prompt lengths."
    return "No row has a prompt."
