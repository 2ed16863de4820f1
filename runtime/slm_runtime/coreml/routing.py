"""Scores on CoreML what fits its graphs. The rest goes to the spare decoder, or is refused where there is none."""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from slm_runtime.coreml.room import Room
from slm_runtime.options import RunCounts
from slm_runtime.planning import Limits, Strategy
from slm_runtime.scorer import Scored, ScoredSequence, SequenceScorer
from slm_runtime.tokenizer import TokenIds


@dataclass(frozen=True)
class _Part:
    """Sequences that one scorer takes, with their indices among all."""

    scorer: SequenceScorer
    indices: list[int]
    sequences: list[TokenIds]
    prefix_ids: TokenIds
    limits: Limits


class RoutedScorer:
    """The interface of `SequenceScorer` over fixed shapes.

    A prefix that is longer than any past has its end in the rows, where sequences share it like any beginning.
    """

    def __init__(
        self,
        static: SequenceScorer,
        room: Room,
        spare: Callable[[], SequenceScorer] | None,
        branch_tokens: int,
        counts: RunCounts,
    ) -> None:
        self._static = static
        self._room = room
        self._spare = spare
        self._branch_tokens = branch_tokens
        self._counts = counts

    def refusal(self, num_tokens: int, prefix_tokens: int) -> str | None:
        """Why a prompt of so many tokens, shared ones included, cannot be scored; None: it can."""
        if self._spare or self._fits(num_tokens, prefix_tokens):
            return None
        longest = self._room.longest_prompt(self._branch_tokens, self._cached(prefix_tokens))
        if not longest:
            return (
                f"the labels need {self._branch_tokens} tokens of a row, the bundle's CoreML graphs have at most "
                f"{self._room.row_tokens(0)}; use --provider cpu, or export with a larger --coreml-tokens"
            )
        return (
            f"the prompt has {num_tokens} tokens, with these labels the bundle's CoreML graphs take at most {longest}; "
            "use --provider cpu or --max-tokens, or export with a larger --coreml-tokens"
        )

    def score(
        self,
        sequences: Sequence[TokenIds],
        prefix_ids: TokenIds,
        strategy: Strategy,
        limits: Limits,
        done: Set[int] = frozenset(),
        doubted: Set[int] = frozenset(),  # noqa: ARG002 (what `GuardedScorer` needs to know)
    ) -> Iterator[Scored]:
        """As `SequenceScorer.score`."""
        for part in self._parts(sequences, prefix_ids, limits):
            if part.scorer is not self._static:
                self._counts.cpu_sequences += sum(i not in done for i in part.indices)
            known = {k for k, i in enumerate(part.indices) if i in done}
            for group in part.scorer.score(part.sequences, part.prefix_ids, strategy, part.limits, known):
                yield [(part.indices[k], scored) for k, scored in group]

    def alone(self, token_ids: TokenIds, limits: Limits) -> ScoredSequence:
        """As `SequenceScorer.alone`."""
        (((_, scored),),) = self.score([token_ids], (), "item", limits)
        return scored

    def price(
        self, sequences: Sequence[TokenIds], prefix_ids: TokenIds, strategy: Strategy, limits: Limits
    ) -> tuple[int, float]:
        """As `SequenceScorer.price`."""
        tokens, price = 0, 0.0
        for part in self._parts(sequences, prefix_ids, limits):
            more_tokens, more = part.scorer.price(part.sequences, part.prefix_ids, strategy, part.limits)
            tokens, price = tokens + more_tokens, price + more
        return tokens, price

    def _parts(self, sequences: Sequence[TokenIds], prefix_ids: TokenIds, limits: Limits) -> Iterator[_Part]:
        cached = self._cached(len(prefix_ids))
        fits = [self._fits(len(prefix_ids) + len(sequence), len(prefix_ids)) for sequence in sequences]
        if inside := [i for i, fit in enumerate(fits) if fit]:
            rest = prefix_ids[cached:]
            rows = [rest + sequences[i] for i in inside]
            yield _Part(self._static, inside, rows, prefix_ids[:cached], replace(limits, past_len=cached))
        if outside := [i for i, fit in enumerate(fits) if not fit]:
            assert self._spare is not None, "a prompt that does not fit was not refused"
            yield _Part(self._spare(), outside, [sequences[i] for i in outside], prefix_ids, limits)

    def _cached(self, prefix_tokens: int) -> int:
        """How much of the shared prefix goes into the past."""
        return min(prefix_tokens, self._room.past_tokens)

    def _fits(self, num_tokens: int, prefix_tokens: int) -> bool:
        cached = self._cached(prefix_tokens)
        return self._room.tokens_to_skip(num_tokens - cached, self._branch_tokens, cached) is not None
