"""The PyTorch reference that decides what is right: every prompt whole, alone, unpadded, uncached, in float32.

Models, cache, tokenizer and chat template are transformers' own. Nothing of the runtime is used but the task.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from slm_export.reference_prompt import ReferencePrompts
from slm_export.reference_rules import Question, Tail, ask
from slm_runtime.errors import ParityError, SourceError
from slm_runtime.task import Task

BATCH_SIZE = 32
# Label tails of one length that continue a prompt together, each with its own copy of the prompt's cache.
TAILS_TOGETHER = 16
Progress = Callable[[int], None]


@dataclass(frozen=True)
class ReferenceScores:
    """The answer to one text: `logprobs` [C] of `labels` in nats, as the scoring rule defines them; the best label.

    The best is the one with the highest calibrated log-probability; a tie goes to the label that comes first.
    `num_tokens` counts the prompt. An empty `prior` is 0 for all.
    """

    label: str
    labels: tuple[str, ...]
    logprobs: NDArray[np.float64]
    num_tokens: int
    temperature: float = 1.0
    prior: tuple[float, ...] = ()

    @property
    def calibrated(self) -> NDArray[np.float64]:
        """[C], not normalised: what the labels are compared by."""
        return calibrated(self.logprobs, self.temperature, self.prior)


@dataclass(frozen=True)
class BucketedScores:
    """The answers to many texts, in order, and the padding as a share of the prompts' processed tokens."""

    scores: list[ReferenceScores]
    padding_share: float


class Reference:
    """A causal language model in transformers, and what it says about texts."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path, *, num_threads: int) -> Self:
        """The model in a checkpoint folder, in float32. Sets torch's thread count and quietens transformers.

        Raises:
            SourceError: transformers cannot load it, or weights are missing from it.
        """
        torch.set_num_threads(num_threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        local = {"local_files_only": True, "trust_remote_code": False}
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
            # sdpa is what transformers chooses by itself: the timings are those that its users see.
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="sdpa",
                output_loading_info=True,
                **local,
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise SourceError(f"{folder}: transformers cannot load it ({reason})") from error
        model, report = loaded
        # transformers fills such weights with random numbers and goes on.
        if missing := sorted(report["missing_keys"]):
            raise SourceError(f"{folder}: weight {missing[0]} is missing; fetch the checkpoint again")
        return cls(model.eval(), tokenizer)

    def question(self, task: Task) -> Question:
        """`task` in this model's tokens.

        Raises:
            LabelError: the labels cannot be told apart under the task's rule.
        """
        return ask(ReferencePrompts(self._tokenizer, task), task)

    def scores(self, texts: Sequence[str], task: Task, *, reuse_prompt: bool = False) -> Iterator[ReferenceScores]:
        """The answer to every text, in order, each when it is known.

        A label of several tokens costs a pass over the prompt and the label, unless `reuse_prompt`: then the prompt
        runs once, and labels of equal length continue copies of its cache together, without padding.
        """
        question = self.question(task)
        run = self._continued if reuse_prompt else self._whole
        for text in texts:
            prompt = question.prompts.prompt_ids(text)
            # No `with inference_mode()` around a yield: the caller would be inside it too.
            yield _scores(question, run(prompt, question.tails), len(prompt))

    def bucketed(
        self,
        texts: Sequence[str],
        task: Task,
        *,
        batch_size: int = BATCH_SIZE,
        reuse_prompt: bool = False,
        progress: Progress = lambda _: None,
    ) -> BucketedScores:
        """The answers by the usual batching: sorted by length, `batch_size` texts at a time, padded on the left.

        A label of several tokens costs a pass over the batch, unless `reuse_prompt`. Only the logits that count are
        computed: all of them would not fit into memory. `progress` is called with the number of texts that were
        finished since the last call.
        """
        question = self.question(task)
        prompts = [question.prompts.prompt_ids(text) for text in texts]
        order = sorted(range(len(texts)), key=lambda i: len(prompts[i]))
        scores: dict[int, ReferenceScores] = {}
        processed = 0
        for start in range(0, len(order), batch_size):
            members = order[start : start + batch_size]
            batch = [prompts[i] for i in members]
            processed += len(batch) * max(map(len, batch))
            found = self._padded(batch, question.tails, reuse_prompt=reuse_prompt)
            for position, i in enumerate(members):
                logits = {tail: rows[position] for tail, rows in found.items()}
                scores[i] = _scores(question, logits, len(prompts[i]))
            progress(len(members))
        padding = 1 - sum(map(len, prompts)) / processed if processed else 0.0
        return BucketedScores([scores[i] for i in range(len(texts))], padding)

    def _whole(self, prompt: list[int], tails: Sequence[Tail]) -> dict[Tail, Tensor]:
        """For every tail the logits [1 + len(tail), V] at the prompt's last token and at the tail's tokens."""
        found = {}
        for tail in tails:
            with torch.inference_mode():
                output = self._model(input_ids=torch.tensor([prompt + list(tail)]), use_cache=False)
            found[tail] = output.logits[0, len(prompt) - 1 :].clone()
        return found

    def _continued(self, prompt: list[int], tails: Sequence[Tail]) -> dict[Tail, Tensor]:
        """As `_whole`, from one pass over the prompt."""
        with torch.inference_mode():
            start = self._model(input_ids=torch.tensor([prompt]), use_cache=True)
            last = start.logits[0, -1:]
            found = dict.fromkeys(tails, last)
            for group in _equally_long(tails, TAILS_TOGETHER):
                past = _shared_past(start.past_key_values, len(group))
                output = self._model(input_ids=torch.tensor(group), past_key_values=past, use_cache=True)
                found.update(
                    (tail, torch.cat([last, logits])) for tail, logits in zip(group, output.logits, strict=True)
                )
        return found

    def _padded(self, prompts: Sequence[list[int]], tails: Sequence[Tail], *, reuse_prompt: bool) -> dict[Tail, Tensor]:
        """For every tail the logits [B, 1 + len(tail), V], as `_whole` has them for one prompt."""
        if not reuse_prompt:
            return {
                tail: self._run_padded([prompt + list(tail) for prompt in prompts], 1 + len(tail)).logits
                for tail in tails
            }
        start = self._run_padded(prompts, 1, use_cache=True)
        return {tail: self._continue_padded(start, prompts, tail) for tail in tails}

    def _run_padded(self, rows: Sequence[list[int]], num_logits: int, *, use_cache: bool = False) -> Any:
        ids, mask = pad_left(rows)
        with torch.inference_mode():
            return self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions_of(mask),
                use_cache=use_cache,
                logits_to_keep=num_logits,
            )

    def _continue_padded(self, start: Any, prompts: Sequence[list[int]], tail: Tail) -> Tensor:
        if not tail:
            return start.logits
        ids = torch.tensor([tail] * len(prompts))
        _, mask = pad_left([prompt + list(tail) for prompt in prompts])
        with torch.inference_mode():
            output = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions_of(mask)[:, -len(tail) :],
                past_key_values=copy.deepcopy(start.past_key_values),
                use_cache=True,
            )
            return torch.cat([start.logits, output.logits], dim=1)


def _equally_long(tails: Sequence[Tail], size: int) -> Iterator[list[Tail]]:
    """Groups of at most `size` tails of one length; the empty tail is in none."""
    for _, same in groupby(sorted(filter(None, tails), key=len), key=len):
        group = list(same)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _shared_past(past: Any, size: int) -> Any:
    """A cache of `size` rows that all are `past`, which stays as it is: new tokens make new tensors."""
    rows = (size, -1, -1, -1)
    layers: Any = tuple((layer.keys.expand(*rows), layer.values.expand(*rows)) for layer in past.layers)
    return transformers.DynamicCache.from_legacy_cache(layers)


def pad_left(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and mask, [B, S] each; the mask comes from the lengths, any token may be part of a prompt."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, longest - len(row) :] = torch.tensor(row)
        mask[i, longest - len(row) :] = 1
    return ids, mask


def positions_of(mask: Tensor) -> Tensor:
    """[B, S] positions that count real tokens only; transformers derives none from a mask."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def _scores(question: Question, logits: dict[Tail, Tensor], num_tokens: int) -> ReferenceScores:
    logprobs = question.logprobs(logits)
    if not np.isfinite(logprobs).all():
        raise ParityError(
            "the PyTorch reference itself returned a score that is not a finite number; compare with another checkpoint"
        )
    best = int(np.argmax(calibrated(logprobs, question.temperature, question.prior)))
    return ReferenceScores(
        question.labels[best], question.labels, logprobs, num_tokens, question.temperature, question.prior
    )


def calibrated(logprobs: NDArray[np.float64], temperature: float, prior: Sequence[float]) -> NDArray[np.float64]:
    """[C] log-probabilities with the labels' prior taken off, over the temperature."""
    return (logprobs - np.array(prior or [0.0] * len(logprobs))) / temperature
