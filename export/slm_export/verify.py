"""The last step of an export: the finished bundle against the PyTorch reference, on the built-in tickets."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from slm_export.golden_tickets import TASKS
from slm_export.reference import Reference
from slm_runtime.classifier import Classifier
from slm_runtime.errors import ParityError
from slm_runtime.golden import GoldenSet, check_tokens, compare, passes, write_golden
from slm_runtime.manifest import Manifest, ParityRecord

Say = Callable[[str], None]


def reference_answers(reference: Reference, folder: Path, *, say: Say) -> list[GoldenSet]:
    """Ask the reference every built-in ticket and keep its answers in the bundle."""
    sets = []
    for task, texts in TASKS:
        say(f"asking the PyTorch reference {len(texts)} tickets, {task.scoring} scoring")
        prompts = reference.question(task).prompts
        token_ids = tuple(tuple(prompts.prompt_ids(text)) for text in texts)
        logprobs = tuple(tuple(map(float, s.logprobs)) for s in reference.scores(texts, task))
        sets.append(GoldenSet(task.labels, task.scoring, tuple(texts), token_ids, logprobs))
    write_golden(folder, sets)
    return sets


def verified(folder: Path, manifest: Manifest, sets: list[GoldenSet], *, say: Say) -> Manifest:
    """`manifest` with the parity records of the bundle in `folder`.

    Raises:
        ParityError: a label differs, or a log-probability by more than the tolerance.
    """
    classifier = Classifier.load(folder, precision="fp32")
    records: list[ParityRecord] = []
    for golden in sets:
        check_tokens(classifier, golden)
        record = compare(classifier, golden)
        say(
            f"{record.scoring}: {record.labels_equal}/{record.num_tickets} labels equal, "
            f"max |log-prob difference| {record.max_logprob_diff:.1e}"
        )
        if not passes(record):
            raise ParityError(
                f"{manifest.model.id}: the exported graph differs from PyTorch ({record.scoring} scoring, "
                f"{record.labels_equal}/{record.num_tickets} labels equal, difference {record.max_logprob_diff:.1e}, "
                f"tolerance {record.tolerance:.0e}); no bundle was kept"
            )
        records.append(record)
    return dataclasses.replace(manifest, parity=tuple(records))
