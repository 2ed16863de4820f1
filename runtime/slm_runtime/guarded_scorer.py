"""Int8 first, float where int8 is in doubt: the same interface as `SequenceScorer`."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence, Set

from slm_runtime.coreml.routing import RoutedScorer
from slm_runtime.options import RunCounts
from slm_runtime.planning import Limits, Strategy
from slm_runtime.precision import MarginGuard
from slm_runtime.scorer import Scored, ScoredSequence, SequenceScorer
from slm_runtime.tokenizer import TokenIds

# This share of a run's first window, within these limits, is tried before the rest is decided on, in stages of which
# the first has so many. They are taken from the shortest quarter: what is tried in vain should cost little.
PILOT_SHARE, MIN_PILOT, MAX_PILOT = 1 / 64, 8, 64
FIRST_STAGE = 4
PILOT_QUARTER = 4
# Where more of them are in doubt, scoring all in float straight away is quicker: int8 saves about a third.
MAX_DOUBTFUL_SHARE = 0.25


def pilot_size(num_sequences: int) -> int:
    """How many of the first window's distinct sequences are tried: more would cost what the trial may save."""
    return max(MIN_PILOT, min(MAX_PILOT, round(PILOT_SHARE * num_sequences)))


def pilot_stages(sequences: Sequence[TokenIds]) -> list[list[int]]:
    """Indices of the sequences that are tried, stage by stage; each stage doubles what was tried before."""
    size = min(len(sequences), pilot_size(len(sequences)))
    lengths = sorted(map(len, sequences))
    longest = lengths[max(size, -(-len(sequences) // PILOT_QUARTER)) - 1]
    tried = [index for index, sequence in enumerate(sequences) if len(sequence) <= longest][:size]
    stages, start, stop = [], 0, FIRST_STAGE
    while start < size:
        stages.append(tried[start:stop])
        start, stop = stop, 2 * stop
    return stages


OneScorer = SequenceScorer | RoutedScorer


class GuardedScorer:
    """Scores on the int8 decoder, and again on the fp32 one where `guard` does not accept the answer.

    `open_exact` is called when the first doubt comes up. Whether int8 pays is decided once, by the first sequences of
    the run, so the same input always takes the same path. `counts` grows with the work.
    """

    def __init__(
        self, int8: OneScorer, open_exact: Callable[[], OneScorer], guard: MarginGuard, counts: RunCounts
    ) -> None:
        self._int8 = int8
        self._open_exact = open_exact
        self._exact: OneScorer | None = None
        self._guard = guard
        self._counts = counts
        self.pays: bool | None = None

    @property
    def exact(self) -> OneScorer:
        """The scorer on the fp32 decoder."""
        if self._exact is None:
            self._exact = self._open_exact()
        return self._exact

    def score(
        self,
        sequences: Sequence[TokenIds],
        prefix_ids: TokenIds,
        strategy: Strategy,
        limits: Limits,
        done: Set[int] = frozenset(),
        doubted: Set[int] = frozenset(),
    ) -> Iterator[Scored]:
        """As `SequenceScorer.score`; `doubted` are those of `done` that an earlier run scored again in float."""

        def run(scorer: OneScorer, indices: Sequence[int]) -> Iterator[Scored]:
            local_done = {local for local, index in enumerate(indices) if index in done}
            chosen = [sequences[index] for index in indices]
            for group in scorer.score(chosen, prefix_ids, strategy, limits, local_done):
                yield [(indices[local], scored) for local, scored in group]

        def attempt(indices: Sequence[int]) -> Iterator[Scored]:
            for group in run(self._int8, indices):
                yield [(index, scored) for index, scored in group if self._guard.accepts(scored)]
                doubtful.update(pair for pair in group if not self._guard.accepts(pair[1]))

        doubtful: dict[int, ScoredSequence | None] = dict.fromkeys(doubted)
        tried: set[int] = set()
        if self.pays is None and sequences:
            for stage in pilot_stages(sequences):
                yield from attempt(stage)
                tried.update(stage)
                self.pays = len(doubtful.keys() & tried) <= MAX_DOUBTFUL_SHARE * len(tried)
                if not self.pays:
                    break
        left = [index for index in range(len(sequences)) if index not in tried]
        if self.pays:
            yield from attempt(left)
            left = []
        again = sorted({*doubtful, *left})
        for group in run(self.exact, again) if again else ():
            yield [(index, self._recounted(doubtful.get(index), scored)) for index, scored in group]

    def price(
        self, sequences: Sequence[TokenIds], prefix_ids: TokenIds, strategy: Strategy, limits: Limits
    ) -> tuple[int, float]:
        """As `SequenceScorer.price`, for the int8 decoder alone."""
        return self._int8.price(sequences, prefix_ids, strategy, limits)

    def refusal(self, num_tokens: int, prefix_tokens: int) -> str | None:
        """As `SequenceScorer.refusal`."""
        return self._int8.refusal(num_tokens, prefix_tokens)

    def alone(self, token_ids: TokenIds, limits: Limits) -> ScoredSequence:
        """As `SequenceScorer.alone`, on the fp32 decoder."""
        return self.exact.alone(token_ids, limits)

    def _recounted(self, before: ScoredSequence | None, scored: ScoredSequence) -> ScoredSequence:
        if before is None:
            return scored
        self._counts.changed += self._guard.winner(before) != self._guard.winner(scored)
        return dataclasses.replace(scored, rechecked=True)
