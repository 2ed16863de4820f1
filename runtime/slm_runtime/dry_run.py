"""`--dry-run`: what a run would do and how long it would take; no ticket gets a label."""

import time
from array import array
from collections.abc import Iterable, Sequence

import click
import numpy as np

from slm_runtime.classifier import Classifier, TaskRunner, windows
from slm_runtime.command import ALL_LABELLED, SOME_FAILED
from slm_runtime.prompt import EncodedTicket
from slm_runtime.records import Prediction, Ticket

# The speed is that of a sample of about so many tokens, after a warm-up of the same size.
SAMPLE_TOKENS = 600
SHOWN_FAILURES = 5
BAR_WIDTH = 40


def describe_job(classifier: Classifier, runner: TaskRunner, tickets: Iterable[Ticket]) -> int:
    """Print counts, prompt lengths, the labels' tokens and an estimate; exit code 1 when rows would fail."""
    num_rows, num_sequences, num_tokens, price = 0, 0, 0, 0.0
    lengths, failures = array("l"), list[Prediction]()
    num_failed, sample = 0, list[EncodedTicket]()
    for window in windows(tickets, runner.options.window):
        encoded, failed = runner.encode(window)
        plan = runner.plan(encoded)
        num_rows += len(window)
        num_sequences += plan.num_sequences
        num_tokens += plan.num_tokens
        price += plan.price
        lengths.extend(ticket.num_tokens for ticket in encoded)
        num_failed += len(failed)
        failures += failed[: SHOWN_FAILURES - len(failures)]
        sample = sample or _sample(encoded)
    click.echo(f"rows: {num_rows}, of which {num_failed} cannot be classified")
    for failure in failures:
        click.echo(f"  row {failure.row}: {failure.error}")
    click.echo(f"distinct prompts: {num_sequences}; equal ones within a window of {runner.options.window} count once")
    prefix = len(runner.encoder.prefix_ids)
    click.echo(f"tokens: {sum(lengths)} in prompts, {num_tokens} to process after a shared prefix of {prefix}")
    _print_histogram(np.array(lengths))
    _print_labels(runner)
    if sample:
        seconds = price * _seconds_per_unit(runner, sample)
        click.echo(f"estimated time: {_readable(seconds)} with {classifier.num_threads} threads, from a short sample")
    return SOME_FAILED if num_failed else ALL_LABELLED


def _sample(encoded: Sequence[EncodedTicket]) -> list[EncodedTicket]:
    """Tickets from all over the window, up to the sample's size; at least one if there is any."""
    chosen: list[EncodedTicket] = []
    size = 0
    step = max(1, len(encoded) // 50)
    for ticket in encoded[::step]:
        if chosen and size + len(ticket.token_ids) > SAMPLE_TOKENS:
            break
        chosen.append(ticket)
        size += len(ticket.token_ids)
    return chosen


def _seconds_per_unit(runner: TaskRunner, sample: Sequence[EncodedTicket]) -> float:
    runner.score_all(sample)
    started = time.perf_counter()
    runner.score_all(sample)
    return (time.perf_counter() - started) / runner.plan(sample).price


def _print_histogram(lengths: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
    """Prompt lengths in bins that double."""
    if not len(lengths):
        return
    click.echo(f"prompt lengths: {lengths.min()} to {lengths.max()}, median {np.median(lengths):.0f}")
    bins = np.ceil(np.log2(lengths)).astype(np.int64)
    counts = {int(b): int(n) for b, n in zip(*np.unique(bins, return_counts=True), strict=True)}
    for exponent in range(min(counts), max(counts) + 1):
        number = counts.get(exponent, 0)
        bar = "#" * round(BAR_WIDTH * number / max(counts.values()))
        click.echo(f"  <= {2**exponent:<6}{number:>8}  {bar}".rstrip())


def _print_labels(runner: TaskRunner) -> None:
    width = max(map(len, runner.task.labels))
    click.echo(f"labels: {len(runner.task.labels)}, {runner.rule} scoring")
    for label, ids in zip(runner.task.labels, runner.label_tokens, strict=True):
        click.echo(f"  {label:<{width}}  {' '.join(map(str, ids))}")


def _readable(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
