"""`--explain ROW`: the prompt of one ticket piece by piece, the labels' tokens, and how they scored."""

from collections.abc import Iterable

import click
import numpy as np

from slm_runtime.classifier import TaskRunner
from slm_runtime.command import ALL_LABELLED, SOME_FAILED
from slm_runtime.errors import InputError
from slm_runtime.prediction import predict
from slm_runtime.prompt import EncodedTicket
from slm_runtime.records import Ticket
from slm_runtime.tokenizer import TokenIds


def explain_row(runner: TaskRunner, tickets: Iterable[Ticket], row: int) -> int:
    """Print everything about row `row`, counted from 0; exit code 1 when it cannot be classified.

    Raises:
        InputError: the input has no such row.
    """
    ticket = _find(tickets, row)
    click.echo(f"row {ticket.row}, id {ticket.id!r}")
    encoded, failures = runner.encode([ticket])
    if failures:
        click.echo(f"cannot be classified: {failures[0].error}")
        return SOME_FAILED
    _print_prompt(runner, encoded[0])
    _print_labels(runner, ticket, encoded[0])
    return ALL_LABELLED


def _find(tickets: Iterable[Ticket], row: int) -> Ticket:
    num_rows = 0
    for ticket in tickets:
        if ticket.row == row:
            return ticket
        num_rows += 1
    raise InputError(f"--explain {row}: the input has {num_rows} rows, counted from 0; give a smaller number")


def _print_prompt(runner: TaskRunner, encoded: EncodedTicket) -> None:
    prefix = runner.encoder.prefix_ids
    cut = ", ticket text was cut off" if encoded.truncated else ""
    click.echo(f"prompt: {encoded.num_tokens} tokens, the first {len(prefix)} shared by all tickets{cut}")
    for name, ids in (("shared", prefix), ("ticket", encoded.token_ids)):
        for text, piece in runner.encoder.pieces(ids):
            click.echo(f"  {name}  {text!r}  {_joined(piece)}")


def _print_labels(runner: TaskRunner, ticket: Ticket, encoded: EncodedTicket) -> None:
    (scored,) = runner.score_all([encoded])
    prediction = predict(ticket, encoded, scored, runner.task)
    width = max(map(len, runner.task.labels))
    click.echo(f"labels, {runner.rule} scoring:")
    calibration = runner.task.calibration
    calibrated = calibration.apply(scored.logprobs)
    for i in np.argsort(-calibrated, kind="stable"):
        label = runner.task.labels[i]
        sign = " " if scored.exact[i] else "<"
        share = f"{prediction.scores[label]:.4f}" if label in prediction.scores else "ruled out"
        shown = "" if calibration.is_neutral else f"  calibrated {sign}{calibrated[i]:.4f}"
        tokens = _joined(runner.label_tokens[i])
        click.echo(f"  {label:<{width}}  {sign}{scored.logprobs[i]:.4f} nats{shown}  {share}  {tokens}")
    mass = "" if prediction.label_mass is None else f", label mass {prediction.label_mass:.4f}"
    margin = "" if prediction.margin is None else f", margin {prediction.margin:.4f} nats"
    again = ", scored again alone" if scored.rechecked else ""
    click.echo(f"label: {prediction.label!r}, score {prediction.score}{margin}{mass}{again}")


def _joined(ids: TokenIds) -> str:
    return " ".join(map(str, ids))
