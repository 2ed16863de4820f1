"""CTranslate2 with the shared prefix as its cached static prompt.

`forward_batch` on length-sorted batches of 256, 512 or 1,024 tokens was slower in every trial: it cannot use the
static prompt and computes the logits of every position.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ctranslate2  # type: ignore[import-untyped]
import numpy as np
from peer_prompts import TokenRows, shared_prefix_len
from transformers import AutoTokenizer

from slm_export.reference_rules import Question

BATCH_TOKENS = 512


class CTranslate2Peer:
    """A float32 CTranslate2 model; answers by the first-token rule."""

    def __init__(self, folder: Path, checkpoint: Path, question: Question, *, num_threads: int) -> None:
        self._question = question
        load: Any = AutoTokenizer.from_pretrained
        self._tokenizer = load(checkpoint, local_files_only=True)
        self._generator = ctranslate2.Generator(str(folder), compute_type="float32", intra_threads=num_threads)

    def labels(self, texts: Sequence[str]) -> list[str]:
        """The label of every text."""
        prompts = [self._question.prompts.prompt_ids(text) for text in texts]
        prefix_len = shared_prefix_len(prompts)
        suffixes = [prompt[prefix_len:] for prompt in prompts]
        found: dict[int, str] = {}
        for members in equal_length_batches(suffixes):
            rows = [suffixes[i] for i in members]
            best = self._logits(prompts[0][:prefix_len], rows).argmax(axis=1)
            found |= {i: self._question.labels[choice] for i, choice in zip(members, best, strict=True)}
        return [found[i] for i in range(len(texts))]

    def _logits(self, prefix: list[int], rows: TokenRows) -> np.ndarray:
        """[B, C]: the labels' first tokens after each row, which continues the prefix."""
        tokens = self._tokenizer.convert_ids_to_tokens
        results = self._generator.generate_batch(
            [tokens(row) for row in rows],
            static_prompt=tokens(prefix),
            include_prompt_in_result=False,
            max_length=1,
            return_logits_vocab=True,
        )
        firsts = [path[0] for path in self._question.paths]
        return np.array([np.asarray(result.logits[0][0])[firsts] for result in results])


def equal_length_batches(rows: TokenRows) -> Iterator[list[int]]:
    """Indices of rows, longest first. In a mixed batch all tokens after the shortest row would run one by one."""
    members: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        same_length = bool(members) and len(rows[i]) == len(rows[members[0]])
        if members and not (same_length and (len(members) + 1) * len(rows[i]) <= BATCH_TOKENS):
            yield members
            members = []
        members.append(i)
    if members:
        yield members
