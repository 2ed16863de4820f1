"""Keeps the README's performance section equal to the measurements in tests/bench/results/.

python tests/bench/performance.py            rewrites what is between `<!-- performance -->` and `<!-- /performance -->`
python tests/bench/performance.py --check    exits 1 when the README says something else

seed.json, five.json and all77.json are written by `slm-parity --json`, peers.json by tests/bench/peers.py, bench.json
by `slm-run bench --json`, serve.json by tests/bench/serve_load.py and quality.json by tests/bench/quality.py. A table
whose file is missing is left out.
"""

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from performance_serve import HEAD, serve_command, serve_intro, serve_rows

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = "tests/bench/results"
NAMES = ("seed", "five", "all77", "peers", "bench", "serve", "quality")
BLOCK = re.compile(r"(?P<start><!-- performance -->\n).*?(?P<end><!-- /performance -->)", re.DOTALL)
# Where a workload that is named in a result lies in this repository.
WORKLOAD_FILES = {"sample.csv": "tests/data/banking77/sample.csv"}
SEED_TICKETS = 600
QUALITY_WORKLOADS = ("ten", "all77", "seed")
Report = Mapping[str, Any]


class ResultsError(Exception):
    """The results do not belong together, or the README has no block for them."""


def section(reports: Mapping[str, Report]) -> str:
    """The section's text; empty when nothing was measured."""
    if not reports:
        return ""
    parts = [_opening(list(reports.values()))]
    if seed := reports.get("seed"):
        parts.append(_parity_part("Seed workload", "seed", seed))
    for name in ("five", "all77"):
        if report := reports.get(name):
            title = f"Real texts, banking77, {report['task']['num_labels']} labels"
            parts.append(_parity_part(title, name, report))
    if peers := reports.get("peers"):
        parts.append(_peers_part(peers))
    if bench := reports.get("bench"):
        parts.append(_bench_part(bench))
    if serve := reports.get("serve"):
        parts.append(_part(serve_intro(serve), serve_command(serve), _table(HEAD, serve_rows(serve))))
    if quality := reports.get("quality"):
        parts.append(_quality_part(quality))
    return "\n\n".join(parts) + "\n"


def _opening(reports: Sequence[Report]) -> str:
    machines = {json.dumps(report["machine"], sort_keys=True): report["machine"] for report in reports}
    if len(machines) > 1:
        raise ResultsError(f"the results come from different machines: {'; '.join(machines)}. Measure all on one")
    (machine,) = machines.values()
    versions: dict[str, set[str]] = {}
    for report in reports:
        for name, version in report["versions"].items():
            versions.setdefault(name, set()).add(version)
    listed = ", ".join(f"{name} {'/'.join(sorted(found))}" for name, found in versions.items())
    return _paragraph(
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['system']}; "
        f"{listed}. items/s are tickets per second of wall time, tokenisation included, loading and a warm-up of two "
        "tickets excluded; within a table everything ran in one process on the same tickets and threads. Padding is "
        "its share of the processed tokens. Labels and log-probabilities (in nats) are compared with PyTorch item by "
        "item, in float32."
    )


def _parity_part(title: str, name: str, report: Report) -> str:
    item, bucketed = report["reference"]["item"], report["reference"]["bucketed"]
    how = "prompt once, then label by label" if item["reuses_prompt"] else "item by item"
    rows = [(f"PyTorch, {how}", item), ("PyTorch, length-sorted batches of 32", bucketed)]
    order = sorted(report["runtime"], key=["item", "naive", "bucketed", "packed"].index)
    rows += [(f"this runtime, `{strategy}`", report["runtime"][strategy]) for strategy in order]
    base = item["items_per_s"]
    cells = [
        (
            label,
            f"{found['items_per_s']:.2f}",
            f"{found['items_per_s'] / base:.1f}",
            f"{found['items_per_s'] / bucketed['items_per_s']:.1f}",
            _share(found.get("padding_share", 0.0)),
            f"{found['labels_equal']}/{found['of']}" if "of" in found else "reference",
            f"{found['max_logprob_diff']:.1e}" if "max_logprob_diff" in found else "",
        )
        for label, found in rows
    ]
    workload = report["workload"]
    head = ("", "items/s", "x item", "x batches", "padding", "labels equal", "max \\|dlogprob\\|")
    intro = f"**{title}**: {workload['tickets']} tickets, scoring `{report['scoring']}`."
    return _part(intro, _parity_command(name, report), _table(head, cells))


def _parity_command(name: str, report: Report) -> str:
    workload = report["workload"]
    is_seed = workload["name"] == "seed"
    rows = workload["tickets"] + workload["unusable_rows"] + workload["too_long"]
    source = "" if is_seed else f" --workload {WORKLOAD_FILES.get(workload['name'], workload['name'])}"
    task = "" if is_seed else f" --task tests/bench/banking77-{name}.toml"
    limit = "" if is_seed and rows == SEED_TICKETS else f" --limit {rows}"
    strategies = f" --strategies {','.join(report['runtime'])}"
    return f"slm-parity models/{report['bundle']['id']}{source}{task}{limit}{strategies} --json {RESULTS}/{name}.json"


def _peers_part(report: Report) -> str:
    paths, tickets = report["paths"], report["workload"]["tickets"]
    base = next(iter(paths.values()))["median"]
    cells = [
        (
            name,
            f"{found['median']:.2f}",
            f"{min(found['items_per_s']):.2f} - {max(found['items_per_s']):.2f}",
            f"{found['median'] / base:.1f}",
            f"{found['labels_equal']}/{found['of']}",
        )
        for name, found in paths.items()
    ]
    rounds = len(next(iter(paths.values()))["items_per_s"])
    intro = (
        f"**Other runtimes**, the first {tickets} tickets of the seed workload, float32 everywhere, median of {rounds} "
        "rounds in which the paths took turns. llama.cpp computes the shared prompt once and several tickets per "
        "batch; CTranslate2 keeps it as a cached static prompt and batches tickets of equal length."
    )
    command = f"python tests/bench/peers.py --bundle models/NAME --limit {tickets} --rounds {rounds}"
    head = ("", "items/s", "rounds", "x PyTorch", "labels equal")
    return _part(intro, f"{command} --json {RESULTS}/peers.json", _table(head, cells))


def _bench_part(report: Report) -> str:
    facts = []
    if roofline := report.get("roofline"):
        facts.append(
            f"the decoder reaches {roofline['decoder_gflops']:.0f} GFLOP/s, {roofline['share']:.0%} of a bare chain of "
            f"the same matrix products ({roofline['chain_gflops']:.0f} GFLOP/s)"
        )
    if peak := report.get("peak_memory_bytes"):
        facts.append(f"peak resident memory is {peak / 1e9:.2f} GB, mapped weights included")
    head = ("strategy", "items/s", "prompt tokens", "processed tokens", "padding")
    cells = [
        (
            f"`{name}`",
            f"{found['items_per_s']:.2f}",
            f"{found['prompt_tokens']:,}" if "prompt_tokens" in found else "",
            f"{found['processed_tokens']:,}" if "processed_tokens" in found else "",
            _share(found["padding_share"]) if "padding_share" in found else "",
        )
        for name, found in report["strategies"].items()
    ]
    workload = report["workload"]
    intro = f"**The runtime alone**, {workload['tickets']} tickets of {workload['name']}"
    intro += f": {'; '.join(facts)}." if facts else "."
    return _part(intro, f"slm-run bench models/NAME --json {RESULTS}/bench.json", _table(head, cells))


def _quality_part(report: Report) -> str:
    workloads = report["workloads"]
    titles = {"ten": "banking77, 10 labels", "all77": "banking77, 77 labels", "seed": "seed, 3 labels"}
    prompts = {"plain": "plain prompt", "described": "labels described", "few-shot": "one example per label"}
    calibrations = {"before": "", "content_free": ", content-free prior", "fitted": ", fitted"}
    cells = [
        (
            prompts[prompt] + suffix,
            *(_quality_cell(found["prompts"][prompt]["held_back"][variant]) for found in workloads.values()),
        )
        for prompt in prompts
        for variant, suffix in calibrations.items()
    ]
    sizes = "; ".join(
        f"{titles[name]}: {found['held_back']} of {found['rows']}, {found['prompts']['few-shot']['examples']} examples"
        for name, found in workloads.items()
    )
    intro = (
        "**Quality**, accuracy / macro-F1 / expected calibration error (15 bins of equal width) on the rows that were "
        f"held back ({sizes}); temperature and prior were fitted, and examples taken, on the others. The seed's right "
        "label is the base sentence of a ticket, so both halves hold the same three sentences."
    )
    limits = report["limits"]
    flags = [f"--{name} {value}" for name, value in _quality_flags(report["banking77"], limits).items()]
    command = " ".join([f"python tests/bench/quality.py --bundle models/{report['bundle']['id']}", *flags])
    head = ("", *(titles[name] for name in workloads))
    return _part(intro, f"{command} --json {RESULTS}/quality.json", _table(head, cells))


def _quality_flags(banking77: str, limits: Mapping[str, int | None]) -> dict[str, str | int]:
    flags: dict[str, str | int] = {}
    if banking77 not in WORKLOAD_FILES:
        flags["banking77"] = banking77
    if len(limits) < len(QUALITY_WORKLOADS):
        flags["workloads"] = ",".join(limits)
    if common := next((limit for name, limit in limits.items() if name != "all77"), None):
        flags["limit"] = common
    if (slow := limits.get("all77")) and slow != common:
        flags["limit-all77"] = slow
    return flags


def _quality_cell(quality: Mapping[str, float]) -> str:
    return f"{quality['accuracy']:.1%} / {quality['macro_f1']:.2f} / {quality['calibration_error']:.2f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _part(intro: str, command: str, table: str) -> str:
    return f"{_paragraph(f'{intro} Made by')}\n`{command}`:\n\n{table}"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rewritten(text: str, content: str) -> str:
    """`text` with `content` between the markers.

    Raises:
        ResultsError: the markers are not there exactly once.
    """
    if len(BLOCK.findall(text)) != 1:
        raise ResultsError("no single block between <!-- performance --> and <!-- /performance -->")
    return BLOCK.sub(lambda match: match["start"] + content + match["end"], text)


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite or check a README; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the README differs")
    for name in NAMES:
        parser.add_argument(f"--{name}", type=Path, default=ROOT / RESULTS / f"{name}.json")
    parser.add_argument("readme", nargs="?", type=Path, default=README, help="another file than README.md")
    arguments = parser.parse_args(argv)
    files = {name: getattr(arguments, name) for name in NAMES}
    reports = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}
    text = arguments.readme.read_text(encoding="utf-8")
    try:
        wanted = rewritten(text, section(reports))
    except ResultsError as error:
        print(f"performance: {error}", file=sys.stderr)
        return 1
    if arguments.check and wanted != text:
        print(
            f"{arguments.readme}: the performance section differs from the results. Run: "
            "python tests/bench/performance.py",
            file=sys.stderr,
        )
        return 1
    if not arguments.check:
        arguments.readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
