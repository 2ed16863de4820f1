"""The Python API, and the only file that knows the order of the steps.

>>> from slm_runtime.classifier import Classifier
>>> from slm_runtime.task import Task
>>> classifier = Classifier.load("models/qwen2.5-0.5b-instruct")
>>> task = Task(labels=("billing", "technical", "account"))
>>> [p.label for p in classifier.classify(["I was charged twice"], task)]
['billing']
"""

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np

from slm_runtime.bundle import Bundle, find_bundle, read_bundle
from slm_runtime.calibration import Calibration
from slm_runtime.coreml.choice import Decoders, Say, check_graphs, check_provider, open_decoders
from slm_runtime.coreml.planning import StaticPlanner
from slm_runtime.coreml.routing import RoutedScorer
from slm_runtime.cost import CostModel
from slm_runtime.decoder import Decoder
from slm_runtime.defaults import DEFAULT_TICKET_TOKENS
from slm_runtime.errors import InputError, RecordError
from slm_runtime.guarded_scorer import GuardedScorer
from slm_runtime.integrity import check_files
from slm_runtime.label_search import MIN_TREE_NODES
from slm_runtime.labels import LabelTree, Rule, build_label_tree, choose_rule
from slm_runtime.manifest import GraphSpec, MarginBound, read_manifest
from slm_runtime.matrix import Matrix
from slm_runtime.opening import read_opening
from slm_runtime.options import RunCounts, RunOptions
from slm_runtime.planning import DynamicPlanner, Limits, Strategy
from slm_runtime.precision import MarginGuard, Precision, first_graph
from slm_runtime.prediction import failure, margin, predict
from slm_runtime.prefix_cache import MAX_CHUNK_TOKENS, PrefixCache
from slm_runtime.prompt import EncodedTicket, LengthLimit, PromptEncoder
from slm_runtime.records import Prediction, Ticket
from slm_runtime.scorer import Machinery, Scored, ScoredSequence, SequenceScorer
from slm_runtime.scoring import Float32
from slm_runtime.session import DecoderSession, Normalizer
from slm_runtime.task import Task
from slm_runtime.threads import usable_threads
from slm_runtime.ticket_text import is_blank, replace_lone_surrogates
from slm_runtime.tokenizer import TokenIds

# Attention scores of one layer may take this much memory in one call.
ATTENTION_BYTES = 64_000_000
# Scores computed in another order differ by up to 1e-4 nats; closer labels are decided on one canonical path.
NEAR_TIE_NATS = 1e-3
# Told about the rows that were finished together; asked which rows of a window are known already.
OnFinished = Callable[[Sequence[Prediction]], None]
Recall = Callable[[Sequence[Ticket]], Mapping[int, Prediction]]


class Classifier:
    """A loaded bundle. Labels tickets exactly as the exported model would, one at a time and unpadded.

    With `precision` "auto" and an int8 decoder the labels are those of the fp32 decoder, which is opened when the first
    answer is in doubt; with "int8" they are the int8 decoder's own.
    """

    def __init__(self, bundle: Bundle, decoders: Decoders, *, precision: Precision = "auto") -> None:
        self.bundle = bundle
        self.decoder: Decoder = decoders.decoder
        self.num_threads = self.decoder.num_threads
        self.decoders = decoders
        self.precision = precision
        folder, manifest = bundle.folder, bundle.manifest
        self.head = Matrix(folder, manifest.head)
        self.max_pairs = ATTENTION_BYTES // (4 * manifest.decoder.num_heads)
        self._normalizer = Normalizer(folder, manifest.normalizer, self.head, num_threads=self.num_threads)
        self.machinery = self._machinery_of(self.decoder)

    @classmethod
    def load(
        cls,
        bundle: str | Path,
        *,
        provider: str = "cpu",
        threads: int | None = None,
        precision: Precision = "auto",
        say: Say = lambda _: None,
        retry: bool = False,
    ) -> Self:
        """The classifier of the bundle in a folder, its files checked against their digests.

        `provider` is auto, cpu or coreml. `say` gets the notice that auto had to do without CoreML. With `retry`
        CoreML graphs that failed on this machine before are tried again.

        Raises:
            ArtifactError: the bundle is damaged, not for this version, or lacks a decoder that `precision` needs.
            ProviderError: the provider is not available here, or not for this bundle.
        """
        check_provider(provider)
        folder = find_bundle(bundle)
        manifest = read_manifest(folder)
        check_graphs(provider, folder, manifest)
        graph = first_graph(folder, manifest, precision)
        check_files(folder, manifest)
        num_threads = usable_threads(threads)
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(read_bundle, folder, manifest)
            decoders = open_decoders(folder, manifest, graph, provider, num_threads=num_threads, say=say, retry=retry)
            return cls(read.result(), decoders, precision=precision)

    @property
    def is_guarded(self) -> bool:
        """True when an int8 decoder goes first and its doubtful answers are scored again in fp32."""
        return self.precision == "auto" and self.decoder.precision == "int8"

    @cached_property
    def exact_machinery(self) -> Machinery:
        """What fp32 scoring runs on beside an int8 decoder; opened when it is first asked for."""
        folder, manifest = self.bundle.folder, self.bundle.manifest
        graph = first_graph(folder, manifest, "fp32")
        return self._machinery_of(DecoderSession(folder, manifest, graph, num_threads=self.num_threads))

    @property
    def open_graphs(self) -> list[GraphSpec]:
        """The decoders of the CPU that were opened so far."""
        exact = [self.exact_machinery.decoder] if "exact_machinery" in vars(self) else []
        return [decoder.spec for decoder in (self.decoder, *exact) if isinstance(decoder, DecoderSession)]

    def scorer(
        self,
        tree: LabelTree,
        step_rows: Float32,
        counts: RunCounts,
        *,
        search: bool,
        calibration: Calibration,
        exact: bool = False,
    ) -> SequenceScorer | RoutedScorer:
        """Scores the labels of a task, on graphs of fixed shapes where they fit; those know no search.

        With `exact` on the fp32 decoder that stands beside an int8 one.
        """
        room = self.decoder.room

        def on(machinery: Machinery, *, search: bool) -> SequenceScorer:
            return SequenceScorer(machinery, tree, step_rows, counts, search=search, calibration=calibration)

        if room is None:
            return on(self.exact_machinery if exact else self.machinery, search=search)
        spare = None if self.decoders.spare is None else lambda: on(self._spare_machinery, search=search)
        return RoutedScorer(on(self.machinery, search=False), room, spare, len(tree.token_ids), counts)

    @cached_property
    def _spare_machinery(self) -> Machinery:
        assert self.decoders.spare is not None
        return self._machinery_of(self.decoders.spare())

    def _machinery_of(self, decoder: Decoder) -> Machinery:
        manifest, room = self.bundle.manifest, decoder.room
        longest_chunk = MAX_CHUNK_TOKENS if room is None else room.row_tokens(room.past_tokens)
        opening = None
        if manifest.int8 is not None and manifest.int8.opening is not None and decoder.precision == "int8":
            opening = read_opening(self.bundle.folder, manifest.int8.opening, manifest.int8.decoder)
        cache = PrefixCache(decoder, max_pairs=self.max_pairs, longest_chunk=longest_chunk, opening=opening)
        graph = decoder.spec if isinstance(decoder, DecoderSession) else manifest.decoder
        cost = CostModel.of_graph(graph, manifest.weight_bytes(graph))
        planner = DynamicPlanner(cost) if room is None else StaticPlanner(room, cost)
        return Machinery(decoder, self._normalizer, cache, planner)

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


@dataclass(frozen=True)
class JobPlan:
    """`num_sequences` distinct prompts, `num_tokens` to process (padding included), `price` in the cost model's units.

    The shared prefix and, for large label sets, the label nodes are not in it.
    """

    num_sequences: int
    num_tokens: int
    price: float


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
        self._scorer = self._choose_scorer()
        if reason := self.refusal(self.encoder.num_frame_tokens + 1):
            raise InputError(reason)
        self._limit = self._length_limit(bundle.manifest.model.max_positions)

    @property
    def precision(self) -> str:
        """What decides the labels: "fp32", "int8", "fp16", or "auto" for int8 where its margin is wide enough."""
        if self._classifier.is_guarded:
            return "auto" if isinstance(self._scorer, GuardedScorer) else "fp32"
        return self._classifier.decoder.precision

    @property
    def bound(self) -> MarginBound | None:
        """What the export measured about int8 under this scoring rule, where int8 is used and enough labels were."""
        int8 = self._classifier.bundle.manifest.int8
        bound = None if int8 is None else int8.bound_for(self.rule)
        return bound if bound is not None and len(self.task.labels) <= bound.max_labels else None

    @property
    def int8_pays(self) -> bool | None:
        """Whether `auto` stays with int8; None while that is open, or where `auto` was not asked for."""
        return self._scorer.pays if isinstance(self._scorer, GuardedScorer) else None

    def _choose_scorer(self) -> SequenceScorer | RoutedScorer | GuardedScorer:
        if not self._classifier.is_guarded:
            return self._new_scorer()
        if self.bound is None:
            return self._new_scorer(exact=True)
        guard = MarginGuard(max(self.bound.bound, NEAR_TIE_NATS), self.task)
        return GuardedScorer(self._new_scorer(), lambda: self._new_scorer(exact=True), guard, self.counts)

    def _new_scorer(self, *, exact: bool = False) -> SequenceScorer | RoutedScorer:
        return self._classifier.scorer(
            self.tree,
            self._step_rows,
            self.counts,
            search=not self.options.all_scores and len(self.tree.token_ids) >= MIN_TREE_NODES,
            calibration=self.task.calibration,
            exact=exact,
        )

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

    def refusal(self, num_tokens: int) -> str | None:
        """Why a prompt of so many tokens cannot be scored on this decoder; None: it can."""
        return self._scorer.refusal(num_tokens, len(self.encoder.prefix_ids) if self.options.prefix_cache else 0)

    @property
    def max_tokens(self) -> int:
        """The longest prompt of this run, in tokens."""
        return self._limit.max_tokens

    def run(self, tickets: Iterable[Ticket], on_finished: OnFinished = lambda _: None) -> Iterator[Prediction]:
        """One prediction per ticket, in order; windows of `options.window` tickets are worked on together.

        `on_finished` is called with the predictions that were made together, in the order of the work.
        """
        for predictions in self.run_windows(windows(tickets, self.options.window), on_finished):
            yield from predictions

    def run_windows(
        self,
        tickets: Iterable[Sequence[Ticket]],
        on_finished: OnFinished = lambda _: None,
        recall: Recall = lambda _: {},
    ) -> Iterator[list[Prediction]]:
        """The predictions of every window of tickets, in the tickets' order.

        Rows that `recall` knows are not scored again. The others get the answers, to the last bit, that they get when
        nothing is recalled, if the recalled rows are all those of some calls of `on_finished`.
        """
        for window in tickets:
            yield self._run_window(window, on_finished, recall(window))

    def encode(self, window: Sequence[Ticket]) -> tuple[list[EncodedTicket], list[Prediction]]:
        """The token ids of the tickets that can be classified, and the predictions of the others."""
        encoded: list[EncodedTicket] = []
        failures: list[Prediction] = []
        for ticket, result in self._encode(window):
            if isinstance(result, EncodedTicket):
                encoded.append(result)
            else:
                failures.append(failure(ticket, result))
        return encoded, failures

    def plan(self, encoded: Sequence[EncodedTicket]) -> JobPlan:
        """What the scoring of these tickets would take; nothing is run."""
        groups = self._group(encoded)
        tokens, price = self._scorer.price([ids for ids, _ in groups], *self._plan_arguments())
        return JobPlan(len(groups), tokens, price)

    def score_all(self, encoded: Sequence[EncodedTicket]) -> list[ScoredSequence]:
        """The label scores of some tickets, in order; equal ones are scored one by one."""
        prefix = () if self.options.prefix_cache else self.encoder.prefix_ids
        sequences = [prefix + ticket.token_ids for ticket in encoded]
        scored = dict(pair for group in self._score(sequences) for pair in group)
        return [scored[i] for i in range(len(encoded))]

    def _run_window(
        self, window: Sequence[Ticket], on_finished: OnFinished, known: Mapping[int, Prediction]
    ) -> list[Prediction]:
        encoded, failures = self.encode(window)
        predictions = {p.row: p for p in failures} | dict(known)
        on_finished([p for p in failures if p.row not in known])
        self.counts.recalled += len(known)
        groups = self._group(encoded)
        done = {i for i, (_, members) in enumerate(groups) if all(member.row in known for member in members)}
        doubted = {i for i in done if known[groups[i][1][0].row].rechecked}
        by_row = {ticket.row: ticket for ticket in window}
        for scored_group in self._score([ids for ids, _ in groups], done, doubted):
            fresh = [
                predict(by_row[member.row], member, scored, self.task)
                for sequence, scored in scored_group
                for member in groups[sequence][1]
                if member.row not in known
            ]
            predictions.update((p.row, p) for p in fresh)
            on_finished(fresh)
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
            if isinstance(result, RecordError):
                yield ticket, str(result)
            else:
                yield ticket, self.refusal(result.num_tokens) or result

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

    def _score(
        self, sequences: Sequence[TokenIds], done: Set[int] = frozenset(), doubted: Set[int] = frozenset()
    ) -> Iterator[Scored]:
        """(index, scores) of every sequence but `done`; near ties are scored again, alone, whole and uncached."""
        prefix, strategy, limits = self._plan_arguments()
        for group in self._scorer.score(sequences, prefix, strategy, limits, done, doubted):
            yield [(index, self._settled(prefix + sequences[index], scored)) for index, scored in group]

    def _settled(self, token_ids: TokenIds, scored: ScoredSequence) -> ScoredSequence:
        calibration = self.task.calibration
        if margin(scored, calibration) * calibration.temperature >= NEAR_TIE_NATS:
            return scored
        return dataclasses.replace(self._scorer.alone(token_ids, self._limits(0)), rechecked=True)

    def _plan_arguments(self) -> tuple[TokenIds, Strategy, Limits]:
        prefix = self.encoder.prefix_ids if self.options.prefix_cache else ()
        return prefix, self.options.strategy, self._limits(len(prefix))

    def _limits(self, past_len: int) -> Limits:
        return Limits(self.options.batch_tokens, self._classifier.max_pairs, past_len)

    def _count(self, predictions: Sequence[Prediction]) -> None:
        counts = self.counts
        counts.rows += len(predictions)
        for prediction in predictions:
            counts.errors += prediction.error is not None
            counts.truncated += prediction.truncated
            counts.rechecked += prediction.rechecked
            counts.prompt_tokens += prediction.num_tokens
            if prediction.label is not None:
                counts.labels[prediction.label] = counts.labels.get(prediction.label, 0) + 1


def windows(tickets: Iterable[Ticket], size: int) -> Generator[list[Ticket], None, None]:
    """`tickets` in lists of `size`, the last one shorter."""
    source = iter(tickets)
    while window := list(islice(source, size)):
        yield window
