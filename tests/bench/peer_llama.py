"""llama.cpp through llama-cpp-python's low-level API: the shared prefix once, several tickets per batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from peer_prompts import TokenRows, shared_prefix_len

from slm_export.reference_rules import Question

# Best of 256, 512 and 1024 tokens in a batch, and of 256, 512 and 1024 in one pass through the layers.
BATCH_TOKENS = 1024
UBATCH_TOKENS = 512
MAX_TICKETS = 63  # per batch; sequence 0 holds the prefix
LONGEST_PROMPT = 4096


class LlamaPeer:
    """A float32 GGUF model with a float32 cache; answers by the first-token rule.

    The cache is one buffer for all sequences, so that a copied prefix costs nothing; logits are asked for at each
    prompt's last token only.
    """

    def __init__(self, path: Path, question: Question, *, num_threads: int) -> None:
        llama_cpp.llama_log_set(_quiet, None)
        self._question = question
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = LONGEST_PROMPT
        params.n_ubatch = UBATCH_TOKENS
        params.n_seq_max = MAX_TICKETS + 1
        params.n_threads = params.n_threads_batch = num_threads
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.kv_unified = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"{path}: llama.cpp cannot load it")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(LONGEST_PROMPT, 0, 1)

    def labels(self, texts: Sequence[str]) -> list[str]:
        """The label of every text."""
        prompts = [self._question.prompts.prompt_ids(text) for text in texts]
        prefix_len = shared_prefix_len(prompts)
        llama_cpp.llama_memory_clear(self._memory, True)  # noqa: FBT003 - positional only
        self._decode([(0, prompts[0][:prefix_len])], 0)
        suffixes = [prompt[prefix_len:] for prompt in prompts]
        found: dict[int, str] = {}
        for members in batches(suffixes):
            logits = self._batch_logits([suffixes[i] for i in members], prefix_len)
            best = logits.argmax(axis=1)
            found |= {i: self._question.labels[choice] for i, choice in zip(members, best, strict=True)}
        return [found[i] for i in range(len(texts))]

    def _batch_logits(self, rows: TokenRows, start: int) -> np.ndarray:
        """[B, C]: the labels' first tokens after each row, which continues the prefix."""
        for sequence in range(1, len(rows) + 1):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        self._decode(list(enumerate(rows, start=1)), start)
        firsts = [path[0] for path in self._question.paths]
        logits = []
        for last in np.cumsum([len(row) for row in rows]) - 1:
            pointer = llama_cpp.llama_get_logits_ith(self._context, int(last))
            logits.append([pointer[token] for token in firsts])
        for sequence in range(1, len(rows) + 1):
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return np.array(logits)

    def _decode(self, rows: Sequence[tuple[int, list[int]]], start: int) -> None:
        batch, count = self._batch, 0
        for sequence, tokens in rows:
            for offset, token in enumerate(tokens):
                batch.token[count], batch.pos[count] = token, start + offset
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, sequence
                batch.logits[count] = sequence > 0 and offset == len(tokens) - 1
                count += 1
        batch.n_tokens = count
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode failed with status {status}")


def batches(rows: TokenRows) -> Iterator[list[int]]:
    """Indices of rows, longest first, of at most BATCH_TOKENS tokens together unless one alone has more."""
    members: list[int] = []
    tokens = 0
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        if members and (tokens + len(rows[i]) > BATCH_TOKENS or len(members) == MAX_TICKETS):
            yield members
            members, tokens = [], 0
        members.append(i)
        tokens += len(rows[i])
    if members:
        yield members


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(level: int, text: bytes, data: object) -> None:
    return
