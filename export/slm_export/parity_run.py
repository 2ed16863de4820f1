"""The measurement behind slm-parity: reference and runtime one after the other, in one process."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from slm_export.parity import Agreement, compare
from slm_export.reference import BucketedScores, Reference, ReferenceScores
from slm_export.reference_rules import Question
from slm_export.stopwatch import Stopwatch, Timing
from slm_runtime.bundle import Bundle
from slm_runtime.classifier import Classifier
from slm_runtime.errors import InputError
from slm_runtime.options import RunOptions
from slm_runtime.planning import Strategy
from slm_runtime.records import Ticket
from slm_runtime.task import Task

# With more passes per ticket than this the reference runs a prompt once and continues it label by label.
MAX_WHOLE_PASSES = 8
WARM_UP_TICKETS = 2
# Longer prompts are left out: attention over all of their logits would take the reference minutes each.
LONGEST_PROMPT_TOKENS = 4096
Stage = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class ReferenceRun:
    """What the reference said and how fast, item by item and bucketed.

    `kept` are the indices of the texts that were used; the others are too long for the model or the default limit.
    `max_tokens` is that limit for a prompt.
    """

    rule: str
    kept: tuple[int, ...]
    max_tokens: int
    reuses_prompt: bool
    scores: list[ReferenceScores]
    item_time: Timing
    bucketed: BucketedScores
    bucketed_time: Timing

    @property
    def bucketed_labels_equal(self) -> int:
        """How many of the bucketed labels are those of the item by item pass."""
        pairs = zip(self.scores, self.bucketed.scores, strict=True)
        return sum(single.label == batched.label for single, batched in pairs)


@dataclass(frozen=True)
class StrategyRun:
    """What the runtime said by one strategy, and how fast."""

    agreement: Agreement
    run_time: Timing
    padding_share: float


def run_reference(
    folder: Path, bundle: Bundle, texts: Sequence[str], task: Task, *, num_threads: int, stage: Stage
) -> ReferenceRun:
    """Load the checkpoint in `folder` and let it answer, item by item and then bucketed.

    Times include tokenisation, not loading and not the warm-up. The model is released before this returns.

    Raises:
        InputError: every text is too long.
        LabelError: the labels cannot be told apart under the task's rule.
    """
    with stage("loading the reference", 1) as progress:
        reference = Reference.load(folder, num_threads=num_threads)
        progress(1)
    question = reference.question(task)
    max_tokens = _token_limit(question, bundle.manifest.model.max_positions)
    kept = tuple(i for i, text in enumerate(texts) if len(question.prompts.prompt_ids(text)) <= max_tokens)
    if not kept:
        raise InputError(f"all {len(texts)} tickets make prompts of more than {max_tokens} tokens; give shorter ones")
    used = [texts[i] for i in kept]
    reuse = len(question.tails) > MAX_WHOLE_PASSES
    list(reference.scores(used[:WARM_UP_TICKETS], task, reuse_prompt=reuse))
    with stage("reference, item by item", len(used)) as progress:
        watch = Stopwatch()
        scores = list(_counted(reference.scores(used, task, reuse_prompt=reuse), progress))
        item_time = watch.read()
    with stage("reference, bucketed", len(used)) as progress:
        watch = Stopwatch()
        bucketed = reference.bucketed(used, task, reuse_prompt=reuse, progress=progress)
        bucketed_time = watch.read()
    del reference
    gc.collect()
    return ReferenceRun(question.rule, kept, max_tokens, reuse, scores, item_time, bucketed, bucketed_time)


def _token_limit(question: Question, max_positions: int) -> int:
    longest_label = max(len(question.prompts.label_ids(label)) for label in question.labels)
    return min(LONGEST_PROMPT_TOKENS, max_positions - longest_label)


def _counted(answers: Iterator[ReferenceScores], progress: Callable[[int], None]) -> Iterator[ReferenceScores]:
    for answer in answers:
        progress(1)
        yield answer


def run_strategies(
    bundle: Bundle,
    texts: Sequence[str],
    task: Task,
    reference: ReferenceRun,
    strategies: Sequence[Strategy],
    *,
    num_threads: int,
    stage: Stage,
) -> dict[Strategy, StrategyRun]:
    """Let the runtime answer by every strategy, and compare. Times as for the reference."""
    with stage("loading the bundle", 1) as progress:
        classifier = Classifier.load(bundle.folder, threads=num_threads, precision="fp32")
        progress(1)
    tickets = [Ticket(row, None, texts[i]) for row, i in enumerate(reference.kept)]
    runs = {}
    for strategy in strategies:
        options = RunOptions(strategy=strategy, max_tokens=reference.max_tokens, truncate="error")
        list(classifier.prepare(task, options).run(tickets[:WARM_UP_TICKETS]))
        with stage(f"runtime, {strategy}", len(tickets)) as progress:
            watch = Stopwatch()
            runner = classifier.prepare(task, options)
            predictions = list(runner.run(tickets, lambda finished: progress(len(finished))))
            run_time = watch.read()
        runs[strategy] = StrategyRun(compare(reference.scores, predictions), run_time, runner.counts.padding_share)
    return runs
