"""The service's part of the README's performance section."""

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = ("clients", "items/s", "p50 ms", "p95 ms", "p99 ms", "one by one: items/s", "p95 ms", "gain")


def serve_intro(report: Mapping[str, Any]) -> str:
    """What was measured, and what stands beside it."""
    intro = (
        f"**The service**, {report['workload']['name']} workload, one text per request, {report['seconds']:g} s a "
        "line. Clients and service share the processors; every answer was compared with `classify`. One by one is the "
        "same service with `--max-batch 1`."
    )
    if reference := report.get("reference"):
        intro += f" The item-by-item PyTorch loop made {reference['items_per_s']:.2f} items/s beside it."
    if note := report.get("note"):
        intro += f" {note}"
    return intro


def serve_command(report: Mapping[str, Any]) -> str:
    batched = next(iter(report["points"].values()))
    return (
        f"python tests/bench/serve_load.py --bundle models/NAME --seconds {report['seconds']:g} "
        f"--clients {','.join(batched)} --json tests/bench/results/serve.json"
    )


def serve_rows(report: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    """One row per number of clients."""
    batched, single = report["points"]["batched"], report["points"]["one by one"]
    return [
        (
            clients,
            f"{found['items_per_s']:.2f}",
            *(f"{found[share]:,.0f}" for share in ("p50_ms", "p95_ms", "p99_ms")),
            f"{single[clients]['items_per_s']:.2f}",
            f"{single[clients]['p95_ms']:,.0f}",
            f"{found['items_per_s'] / single[clients]['items_per_s']:.1f}",
        )
        for clients, found in batched.items()
    ]
