"""The Python API, and the only file that knows the order of the steps.

>>> from slm_runtime.classifier import Classifier
>>> from slm_runtime.task import Task
>>> classifier = Classifier.load("models/qwen2.5-0.5b-instruct")
>>> task = Task(labels=("billing", "technical", "account"))
>>> [p.label for p in classifier.classify(["I was charged twice"], task)]
['billing']
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np

from slm_runtime.bundle import Bundle, open_bundle
from slm_runtime.defaults import DEFAULT_TICKET_TOKENS
from slm_runtime.errors import InputError, RecordError
from slm_runtime.labels import Rule, build_label_tree, choose_rule
from slm_runtime.matrix import Matrix
from slm_runtime.options import RunCounts, RunOptions
from slm_runtime.planning import Batch, plan_batches
from slm_runtime.prediction import ScoredSequence, failure, predict
from slm_runtime.prefix_cache import PrefixCache
from slm_runtime.prompt import EncodedTicket, LengthLimit, PromptEncoder
from slm_runtime.records import Prediction, Ticket
from slm_runtime.scoring import Float32, Float64, label_scores, step_logits
from slm_runtime.session import DecoderSession, Normalizer
from slm_runtime.task import Task
from slm_runtime.threads import usable_threads
from slm_runtime.ticket_text import is_blank, replace_lone_surrogates
from slm_runtime.tokenizer import TokenIds

# Hidden states wait until so many positions can share one pass over the head matrix (896 floats each: 15 MB).
NORMALIZER_ROWS = 4096
Progress = Callable[[int], None]


class Classifier:
    """A loaded bundle. Labels tickets exactly as the exported model would, one at a time and unpadded."""

    def __init__(self, bundle: Bundle, *, provider: str = "cpu", threads: int | None = None) -> None:
        self.bundle = bundle
        self.num_threads = usable_threads(threads)
        folder, manifest = bundle.folder, bundle.manifest
        self.decoder = DecoderSession(folder, manifest, provider=provider, num_threads=self.num_threads)
        self.head = Matrix(folder, manifest.head)
        self.normalizer = Normalizer(folder, manifest.normalizer, self.head, num_threads=self.num_threads)
        self.prefix_cache = PrefixCache(self.decoder)

    @classmethod
    def load(cls, bundle: str | Path, *, provider: str = "cpu", threads: int | None = None) -> Self:
        """The classifier of the bundle in a folder, its files checked against their digests.

        Raises:
            ArtifactError: the bundle is damaged or not for this version.
            ProviderError: the provider is not available here.
        """
        return cls(open_bundle(bundle), provider=provider, threads=threads)

    def prepare(self, task: Task, options: RunOptions = RunOptions()) -> "TaskRunner":  # noqa: B008 (frozen)
        """`task`, encoded and ready to label any number of tickets.

        Raises:
            TaskError: the task does not fit this model, for example labels with the same tokens.
            InputError: a token limit beyond what the model was trained for.
        """
        return TaskRunner(self, task, options)

    def classify(
        self,
        texts: Iterable[str],
        task: Task,
        options: RunOptions = RunOptions(),  # noqa: B008 (frozen)
    ) -> list[Prediction]:
        """One prediction per text, in order; a text that cannot be classified has `error` set and no label."""
        tickets = (Ticket(row, None, text) for row, text in enumerate(texts))
        return list(self.prepare(task, options).run(tickets))


class TaskRunner:
    """A task on a classifier. `counts` says what was done so far."""

    def __init__(self, classifier: Classifier, task: Task, options: RunOptions) -> None:
        self._classifier = classifier
        self.task = task
        self.options = options
        self.counts = RunCounts()
        bundle = classifier.bundle
        self.encoder = PromptEncoder(bundle.tokenizer, bundle.template, task)
        self.label_tokens = self.encoder.label_tokens(task.labels)
        self.rule: Rule = choose_rule(task.scoring, self.label_tokens, task.labels)
        self.tree = build_label_tree(self.rule, self.label_tokens, self.encoder.end_of_turn_id)
        self._step_rows = classifier.head.rows(np.array([step.token_id for step in self.tree.steps], np.int64))
        self._limit = self._length_limit(bundle.manifest.model.max_positions)

    def _length_limit(self, max_positions: int) -> LengthLimit:
        """The token limit of this run: what was asked for, or room for a long ticket after the instructions."""
        available = max_positions - max(map(len, self.label_tokens))
        frame, wanted = self.encoder.num_frame_tokens, self.options.max_tokens
        if wanted is not None and wanted > available:
            raise InputError(
                f"a limit of {wanted} tokens and the labels exceed the model's {max_positions} positions; "
                f"lower --max-tokens to at most {available}"
            )
        limit = min(frame + DEFAULT_TICKET_TOKENS, available) if wanted is None else wanted
        if frame >= limit:
            raise InputError(
                f"the prompt has {frame} tokens without any ticket, the limit is {limit}; "
                "raise --max-tokens, or shorten the instructions"
            )
        return LengthLimit(limit, self.options.truncate)

    def run(self, tickets: Iterable[Ticket], progress: Progress = lambda _: None) -> Iterator[Prediction]:
        """One prediction per ticket, in order; windows of `options.window` tickets are worked on together.

        `progress` is called with the number of rows that were finished since the last call.
        """
        source = iter(tickets)
        while window := list(islice(source, self.options.window)):
            yield from self._run_window(window, progress)

    def _run_window(self, window: Sequence[Ticket], progress: Progress) -> list[Prediction]:
        predictions: dict[int, Prediction] = {}
        encoded: list[EncodedTicket] = []
        for ticket, result in self._encode(window):
            if isinstance(result, EncodedTicket):
                encoded.append(result)
            else:
                predictions[ticket.row] = failure(ticket, result)
        progress(len(predictions))
        groups = self._group(encoded)
        by_row = {ticket.row: ticket for ticket in window}
        for sequence, scored in self._score([ids for ids, _ in groups]):
            members = groups[sequence][1]
            for member in members:
                predictions[member.row] = predict(by_row[member.row], member, scored, self.task)
            progress(len(members))
        results = [predictions[ticket.row] for ticket in window]
        self._count(results)
        return results

    def _encode(self, window: Sequence[Ticket]) -> Iterator[tuple[Ticket, EncodedTicket | str]]:
        usable: list[tuple[Ticket, str]] = []
        for ticket in window:
            if ticket.text is None or is_blank(ticket.text):
                yield ticket, ticket.error or ("missing text" if ticket.text is None else "empty text")
            else:
                usable.append((ticket, replace_lone_surrogates(ticket.text)))
        texts = [text for _, text in usable]
        results = self.encoder.encode_many([ticket.row for ticket, _ in usable], texts, self._limit)
        for (ticket, _), result in zip(usable, results, strict=True):
            yield ticket, str(result) if isinstance(result, RecordError) else result

    def _group(self, encoded: Sequence[EncodedTicket]) -> list[tuple[TokenIds, list[EncodedTicket]]]:
        """Distinct token sequences in order of appearance, each with the tickets that have it."""
        prefix = () if self.options.prefix_cache else self.encoder.prefix_ids
        if not self.options.dedupe:
            return [(prefix + ticket.token_ids, [ticket]) for ticket in encoded]
        groups: dict[TokenIds, list[EncodedTicket]] = {}
        for ticket in encoded:
            groups.setdefault(ticket.token_ids, []).append(ticket)
        self.counts.duplicates += len(encoded) - len(groups)
        return [(prefix + ids, members) for ids, members in groups.items()]

    def _score(self, sequences: Sequence[TokenIds]) -> Iterator[tuple[int, ScoredSequence]]:
        """(index, scores) of every sequence, in the order in which the model finishes them."""
        waiting: list[tuple[Batch, Float32]] = []
        for batch in plan_batches(sequences, self.tree, self.options.strategy, self.options.batch_tokens):
            waiting.append((batch, self._hidden(batch)))
            if self.rule != "sequence" or sum(h.shape[0] * h.shape[1] for _, h in waiting) >= NORMALIZER_ROWS:
                yield from self._finish(waiting)
                waiting = []
        if waiting:
            yield from self._finish(waiting)

    def _hidden(self, batch: Batch) -> Float32:
        """[sequences, scored nodes, D]"""
        started = time.perf_counter()
        past = self._classifier.prefix_cache.past(self.encoder.prefix_ids if self.options.prefix_cache else ())
        flat = self._classifier.decoder.last_hidden(batch, past)
        self.counts.model_s += time.perf_counter() - started
        self.counts.batches += 1
        self.counts.real_tokens += batch.num_tokens
        self.counts.processed_tokens += batch.num_processed
        return flat.reshape(len(batch.sequences), len(self.tree.scored_nodes), -1)

    def _finish(self, waiting: Sequence[tuple[Batch, Float32]]) -> Iterator[tuple[int, ScoredSequence]]:
        sequences = np.concatenate([batch.sequences for batch, _ in waiting])
        hidden = np.concatenate([states for _, states in waiting])
        scores = label_scores(self.tree, step_logits(self.tree, hidden, self._step_rows), self._log_norm(hidden))
        for i, sequence in enumerate(sequences):
            mass = None if scores.mass is None else float(scores.mass[i])
            yield int(sequence), ScoredSequence(scores.logprobs[i], mass)

    def _log_norm(self, hidden: Float32) -> Float64 | None:
        if self.rule != "sequence":
            return None
        started = time.perf_counter()
        flat = self._classifier.normalizer.log_norm(hidden.reshape(-1, hidden.shape[-1]))
        self.counts.model_s += time.perf_counter() - started
        return flat.reshape(hidden.shape[:2])

    def _count(self, predictions: Sequence[Prediction]) -> None:
        counts = self.counts
        counts.rows += len(predictions)
        for prediction in predictions:
            counts.errors += prediction.error is not None
            counts.truncated += prediction.truncated
            counts.prompt_tokens += prediction.num_tokens
            if prediction.label is not None:
                counts.labels[prediction.label] = counts.labels.get(prediction.label, 0) + 1
