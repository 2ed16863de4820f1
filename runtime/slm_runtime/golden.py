"""Golden tickets: what the PyTorch reference answered at export, kept in the bundle to be asked again anywhere."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from slm_runtime.classifier import Classifier
from slm_runtime.errors import FormatError, ParityError
from slm_runtime.manifest import GOLDEN_FILE, ParityRecord
from slm_runtime.records import Ticket
from slm_runtime.scoring import log_sum_exp
from slm_runtime.task import Scoring, Task
from slm_runtime.tokenizer import TokenIds

TOLERANCE_NATS = 1e-3


@dataclass(frozen=True)
class GoldenSet:
    """One task's tickets, the tokens of their prompts, and the reference's log-probabilities over the labels.

    `token_ids` is [tickets][tokens], whole prompts as transformers encodes them; `logprobs` [tickets][labels], in nats.
    """

    labels: tuple[str, ...]
    scoring: Scoring
    texts: tuple[str, ...]
    token_ids: tuple[TokenIds, ...]
    logprobs: tuple[tuple[float, ...], ...]

    @property
    def task(self) -> Task:
        return Task(labels=self.labels, scoring=self.scoring)


def write_golden(folder: Path, sets: Sequence[GoldenSet]) -> None:
    content = json.dumps([asdict(golden) for golden in sets], indent=1, ensure_ascii=False)
    (folder / GOLDEN_FILE).write_text(content + "\n", encoding="utf-8")


def read_golden(folder: Path) -> list[GoldenSet]:
    """The golden tickets of a bundle. Raises FormatError when they cannot be read."""
    path = folder / GOLDEN_FILE
    try:
        return [
            GoldenSet(
                labels=tuple(data["labels"]),
                scoring=data["scoring"],
                texts=tuple(data["texts"]),
                token_ids=tuple(map(tuple, data["token_ids"])),
                logprobs=tuple(map(tuple, data["logprobs"])),
            )
            for data in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: cannot be read ({error!r}); export the bundle again") from error


def check_tokens(classifier: Classifier, golden: GoldenSet) -> None:
    """Return when every prompt has the tokens here that it had at export.

    Raises:
        ParityError: names the first ticket whose prompt has not.
    """
    runner = classifier.prepare(golden.task)
    encoded, _ = runner.encode([Ticket(row, None, text) for row, text in enumerate(golden.texts)])
    here = {ticket.row: runner.encoder.prefix_ids + ticket.token_ids for ticket in encoded}
    for row, expected in enumerate(golden.token_ids):
        if here.get(row) != expected:
            raise ParityError(
                f"tokenizer: the prompt of {golden.texts[row][:60]!r} has other tokens here than at export; "
                "install the tokenizers version that `slm-run inspect` shows, or export the bundle again"
            )


def fitting(classifier: Classifier, golden: GoldenSet) -> GoldenSet:
    """The tickets whose prompts this decoder takes: all of them, unless its graphs have fixed shapes."""
    runner = classifier.prepare(golden.task)
    fits = [i for i, ids in enumerate(golden.token_ids) if runner.refusal(len(ids)) is None]
    return dataclasses.replace(
        golden,
        texts=tuple(golden.texts[i] for i in fits),
        token_ids=tuple(golden.token_ids[i] for i in fits),
        logprobs=tuple(golden.logprobs[i] for i in fits),
    )


def compare(classifier: Classifier, golden: GoldenSet, tolerance: float = TOLERANCE_NATS) -> ParityRecord:
    """How this machine's answers differ from the reference's, over log-probabilities normalised over the labels."""
    predictions = classifier.classify(golden.texts, golden.task)
    expected = np.array(golden.logprobs)
    expected = expected - log_sum_exp(expected)[:, None]
    equal, worst = 0, 0.0
    for prediction, logprobs in zip(predictions, expected, strict=True):
        if prediction.error is not None:
            worst = float("inf")
            continue
        scores = np.array([prediction.scores[label] for label in golden.labels])
        found = np.log(np.maximum(scores, np.finfo(np.float64).tiny))
        worst = max(worst, float(np.abs(found - logprobs).max()))
        equal += prediction.label == golden.labels[int(np.argmax(logprobs))]
    return ParityRecord("golden", golden.scoring, len(expected), equal, worst, tolerance)


def passes(record: ParityRecord) -> bool:
    """True when every label agrees and no log-probability is off by more than the tolerance."""
    return record.labels_equal == record.num_tickets and record.max_logprob_diff <= record.tolerance
