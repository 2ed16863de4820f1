"""Token sequences to label scores: plan, run, score. Knows tokens and labels, not tickets."""

import dataclasses
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm_runtime.calibration import Calibration
from slm_runtime.decoder import Decoder
from slm_runtime.expansion import Expander
from slm_runtime.label_search import LabelSearch
from slm_runtime.labels import LabelTree, Step
from slm_runtime.model_input import ModelInput, batch_input
from slm_runtime.options import RunCounts
from slm_runtime.planning import Batch, Limits, Planner, Strategy
from slm_runtime.prefix_cache import PrefixCache
from slm_runtime.scoring import Float32, Float64, label_scores, log_sum_exp, stable_product, step_logits
from slm_runtime.session import Normalizer, Past
from slm_runtime.tokenizer import TokenIds

# Hidden states wait until so many positions can share one pass over the head matrix (896 floats each: 15 MB), or so
# many batches: what waits is lost when the process is killed.
NORMALIZER_ROWS = 4096
NORMALIZER_BATCHES = 8
Scored = list[tuple[int, "ScoredSequence"]]


@dataclass(frozen=True)
class ScoredSequence:
    """`logprobs` [C] of the labels in nats; where not `exact`, an upper bound of a label that cannot win any more.

    `rest` bounds the calibrated log-probability of all labels that are not exact together. `mass` is the labels' share
    of the model's whole distribution where it is known.
    """

    logprobs: Float64
    exact: NDArray[np.bool_]
    mass: float | None
    rest: float = -np.inf
    rechecked: bool = False


@dataclass(frozen=True)
class Machinery:
    """What scoring runs on; shared by all tasks of a classifier. `planner` makes batches that fit the decoder."""

    decoder: Decoder
    normalizer: Normalizer
    prefix_cache: PrefixCache
    planner: Planner


class SequenceScorer:
    """Scores the labels of one tree after any token sequences.

    `search` scores large trees only where a label can still win, `calibration` included. `counts` grows with the work.
    """

    def __init__(
        self,
        machinery: Machinery,
        tree: LabelTree,
        step_rows: Float32,
        counts: RunCounts,
        *,
        search: bool,
        calibration: Calibration,
    ) -> None:
        self._machinery = machinery
        self._tree = tree
        self._step_rows = step_rows
        self._counts = counts
        self._search = search
        self._calibration = calibration
        # The root alone: its hidden state is needed even where it leaves no choice.
        root = dataclasses.replace(tree, token_ids=(), parents=(), steps=(Step(0, 0, ()),))
        self._planned = root if search else tree

    def score(
        self,
        sequences: Sequence[TokenIds],
        prefix_ids: TokenIds,
        strategy: Strategy,
        limits: Limits,
        done: Set[int] = frozenset(),
        doubted: Set[int] = frozenset(),  # noqa: ARG002 (what `GuardedScorer` needs to know)
    ) -> Iterator[Scored]:
        """(index, scores) of every sequence, in groups, in the order in which the model finishes them.

        Sequences follow `prefix_ids`, whose keys and values are computed once. Batches whose sequences are all in
        `done` are left out; the others are the same with and without `done`, and so are their scores.
        """
        sequences, prefix_ids, limits = self._after_opening(sequences, prefix_ids, limits)
        todo = [len(s) for i, s in enumerate(sequences) if i not in done]
        self._counts.prefix_saved_tokens += len(prefix_ids) * len(todo)
        self._counts.tree_saved_tokens += sum(todo) + len(self._planned.token_ids) * len(todo)
        waiting: list[tuple[Batch, Float32]] = []
        for batch in self._machinery.planner.batches(sequences, self._planned, strategy, limits):
            if done and done >= set(batch.sequences.tolist()):
                if batch.trunk and len(batch.sequences) > 1:  # a longer trunk may continue this one
                    self._past(prefix_ids, batch.trunk)
                continue
            past = self._past(prefix_ids, batch.trunk)
            self._counts.tree_saved_tokens -= batch.num_tokens
            model_input = batch_input(batch, past.num_tokens)
            if self._search:
                yield self._searched(batch, model_input, past, limits)
                continue
            waiting.append((batch, self._run(model_input, past, batch.num_tokens)))
            if self._tree.rule != "sequence" or _enough(waiting):
                yield self._finished(waiting)
                waiting = []
        if waiting:
            yield self._finished(waiting)

    def alone(self, token_ids: TokenIds, limits: Limits) -> ScoredSequence:
        """Scores of one sequence in the reference's own way: whole, uncached, with no other beside it."""
        (((_, scored),),) = self.score([token_ids], (), "item", limits)
        return scored

    def refusal(self, num_tokens: int, prefix_tokens: int) -> str | None:  # noqa: ARG002 (any length can be scored)
        """Why a prompt of so many tokens cannot be scored; None: it can."""
        return None

    def price(
        self, sequences: Sequence[TokenIds], prefix_ids: TokenIds, strategy: Strategy, limits: Limits
    ) -> tuple[int, float]:
        """Tokens to process, padding included, and their cost, for `score` with the same arguments."""
        sequences, prefix_ids, limits = self._after_opening(sequences, prefix_ids, limits)
        planner, tokens, price = self._machinery.planner, 0, 0.0
        trunks = set()
        for batch in planner.batches(sequences, self._planned, strategy, limits):
            past_len = len(prefix_ids) + len(batch.trunk)
            tokens += self._machinery.decoder.processed_tokens(len(batch.rows), batch.length, past_len)
            price += planner.price(len(batch.rows), batch.length, past_len)
            if batch.trunk and batch.trunk not in trunks:
                trunks.add(batch.trunk)
                tokens += len(batch.trunk)
                price += planner.price(1, len(batch.trunk), len(prefix_ids))
        return tokens, price

    def _after_opening(
        self, sequences: Sequence[TokenIds], prefix_ids: TokenIds, limits: Limits
    ) -> tuple[Sequence[TokenIds], TokenIds, Limits]:
        """The same prompts, with the whole opening in the prefix: nobody computes its tokens, with any options."""
        opening = self._machinery.prefix_cache.opening_ids
        rest = opening[len(prefix_ids) :]
        if not rest or prefix_ids + rest != opening:
            return sequences, prefix_ids, limits
        if any(len(s) <= len(rest) or s[: len(rest)] != rest for s in sequences):
            return sequences, prefix_ids, limits
        limits = dataclasses.replace(limits, past_len=len(opening))
        return [s[len(rest) :] for s in sequences], opening, limits

    def _finished(self, waiting: Sequence[tuple[Batch, Float32]]) -> Scored:
        sequences = np.concatenate([batch.sequences for batch, _ in waiting])
        flat = np.concatenate([hidden for _, hidden in waiting])
        hidden = flat.reshape(len(sequences), len(self._tree.scored_nodes), flat.shape[-1])
        log_norm = self._log_norm(flat).reshape(hidden.shape[:2]) if self._tree.rule == "sequence" else None
        scores = label_scores(self._tree, step_logits(self._tree, hidden, self._step_rows), log_norm)
        exact = np.ones(self._tree.num_labels, np.bool_)
        masses = [None] * len(sequences) if scores.mass is None else scores.mass.tolist()
        return [
            (sequence, ScoredSequence(logprobs, exact, mass))
            for sequence, logprobs, mass in zip(sequences.tolist(), scores.logprobs, masses, strict=True)
        ]

    def _searched(self, batch: Batch, model_input: ModelInput, past: Past, limits: Limits) -> Scored:
        """The tickets of one batch: their roots in the batch's own call, label nodes in as many more as it takes."""
        started = time.perf_counter()
        hidden, joined = self._machinery.decoder.with_present(model_input, past)
        self._note_call(started, batch.num_tokens, model_input.token_ids.size, batch.length)
        count = len(batch.sequences)
        search = LabelSearch(self._tree, count, self._calibration)
        expander = Expander(batch, self._tree, past.num_tokens, limits)
        self._record(search, np.arange(count), np.zeros(count, np.int64), hidden)
        while any(chosen := search.next_nodes()):
            for call in expander.calls(chosen):
                hidden = self._run(call.model_input, joined, call.model_input.token_ids.size)
                self._record(search, call.tickets, call.nodes, hidden)
        bounds = search.bounds()
        scored = []
        for sequence, upper, exact, rest in zip(
            batch.sequences.tolist(), bounds.upper, bounds.exact, bounds.rest.tolist(), strict=True
        ):
            mass = float(np.exp(log_sum_exp(upper))) if exact.all() else None
            scored.append((sequence, ScoredSequence(upper, exact, mass, rest)))
        return scored

    def _record(
        self, search: LabelSearch, tickets: NDArray[np.int64], nodes: NDArray[np.int64], hidden: Float32
    ) -> None:
        """Enter the steps at (ticket, node) from their hidden states [N, D]."""
        log_norm = self._log_norm(hidden) if self._tree.rule == "sequence" else None
        step_nodes = np.array([step.node for step in self._tree.steps])
        for node in np.unique(nodes):
            steps, rows = np.flatnonzero(step_nodes == node), np.flatnonzero(nodes == node)
            if not len(steps):
                continue
            logits = stable_product(hidden[rows], self._step_rows[steps].T)
            norm = log_sum_exp(logits) if log_norm is None else log_norm[rows]
            search.step_logprobs[np.ix_(tickets[rows], steps)] = logits - norm[:, None]

    def _past(self, prefix_ids: TokenIds, trunk: TokenIds) -> Past:
        self._counts.prefix_saved_tokens -= self._computed(prefix_ids)
        self._counts.tree_saved_tokens -= self._computed(prefix_ids + trunk)
        return self._machinery.prefix_cache.past(prefix_ids + trunk)

    def _computed(self, token_ids: TokenIds) -> int:
        """How many tokens the model had to process before their past was there."""
        cache, started = self._machinery.prefix_cache, time.perf_counter()
        before = cache.num_computed
        cache.past(token_ids)
        computed = cache.num_computed - before
        if computed:
            self._note_call(started, computed, computed, computed)
        return computed

    def _run(self, model_input: ModelInput, past: Past, num_tokens: int) -> Float32:
        started = time.perf_counter()
        hidden = self._machinery.decoder.last_hidden(model_input, past)
        rows, length = model_input.token_ids.shape
        processed = self._machinery.decoder.processed_tokens(rows, length, past.num_tokens)
        self._note_call(started, num_tokens, processed, processed // rows)
        return hidden

    def _note_call(self, started: float, real_tokens: int, processed_tokens: int, length: int) -> None:
        self._counts.note_call(time.perf_counter() - started, real_tokens, processed_tokens, length)

    def _log_norm(self, hidden: Float32) -> Float64:
        started = time.perf_counter()
        log_norm = self._machinery.normalizer.log_norm(hidden)
        self._counts.model_s += time.perf_counter() - started
        return log_norm


def _enough(waiting: Sequence[tuple[Batch, Float32]]) -> bool:
    return len(waiting) >= NORMALIZER_BATCHES or sum(len(flat) for _, flat in waiting) >= NORMALIZER_ROWS
