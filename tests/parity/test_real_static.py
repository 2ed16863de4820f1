"""The static graphs of the real 0.5B model on the CPU provider: label log-probabilities as PyTorch has them.

Every bucket, with the prompts' common beginning in the past and without a past, packed rows and single tickets. One
graph of 1.4 GB is on disk at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from static_feeds import StaticRow, causal
from tolerances import REAL_LOGPROB
from transformers import AutoModelForCausalLM, AutoTokenizer

from slm_export.coreml_check import VERSIONS
from slm_export.coreml_export import static_spec, weights_digest, write_static_graph
from slm_export.coreml_findings import check_graph
from slm_export.decoder import PrefillStep
from slm_export.graph_facts import load_graph
from slm_export.reference import Reference
from slm_export.sources import resolve
from slm_export.static_profile import TOKEN_BUCKETS
from slm_runtime.static_graph import StaticGraphSpec
from slm_runtime.task import Task
from slm_runtime.threads import usable_threads
from slm_runtime.workloads import SEED_LABELS, seed_tickets

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("user_cache")]
MODEL, PAST, TICKETS = "qwen2.5-coder-0.5b-instruct", 64, 16


@dataclass(frozen=True)
class Real:
    """The model, its prompts of some tickets, and PyTorch's log-probabilities over the labels [tickets, C]."""

    step: PrefillStep
    digest: str
    prompts: list[list[int]]
    label_tokens: list[int]
    embeddings: np.ndarray
    head: np.ndarray
    logprobs: np.ndarray
    prefix: list[int]
    past: dict[str, np.ndarray]  # of the prefix

    def row(self, tickets: Sequence[int], start: int) -> tuple[StaticRow, list[int]]:
        """The tickets one after the other, each from token `start` on; and where each of them ends."""
        rest = [self.prompts[ticket][start:] for ticket in tickets]
        visible = causal(sum(map(len, rest)), start)
        ends = np.cumsum([len(tokens) for tokens in rest]).tolist()
        for end in ends[:-1]:
            visible[end:, start : start + end] = False
        positions = np.concatenate([np.arange(start, start + len(tokens)) for tokens in rest])
        token_ids = [token for tokens in rest for token in tokens]
        past = {name: array[:, :start] for name, array in self.past.items()}
        return StaticRow(self.embeddings[token_ids], positions, visible, past), [end - 1 for end in ends]

    def normed_logprobs(self, spec: StaticGraphSpec, hidden: np.ndarray) -> np.ndarray:
        """[n, C] of hidden states [n, D] before the final norm."""
        states = hidden.astype(np.float64)
        states /= np.sqrt((states**2).mean(-1, keepdims=True) + spec.norm_epsilon)
        logits = states * self.step.norm.weight.detach().numpy() @ self.head.T
        return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def real(user_cache: None) -> Real:
    torch.set_num_threads(usable_threads())
    checkpoint = resolve(MODEL).folder
    options: dict[str, Any] = {"local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, **options).eval()
    reference = Reference(model, AutoTokenizer.from_pretrained(checkpoint, fix_mistral_regex=False, **options))
    task, texts = Task(SEED_LABELS), seed_tickets(TICKETS)
    question = reference.question(task)
    prompts = sorted((list(question.prompts.prompt_ids(text)) for text in texts), key=len)
    texts = sorted(texts, key=lambda text: len(question.prompts.prompt_ids(text)))
    shared = next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    prefix = prompts[0][:shared]
    with torch.no_grad():
        cache = model.model(torch.tensor([prefix]), use_cache=True).past_key_values.to_legacy_cache()
    past = {
        f"past_{kind}_{layer}": tensor[0].numpy()
        for layer, pair in enumerate(cache)
        for kind, tensor in zip(("key", "value"), pair, strict=True)
    }
    label_tokens = [path[0] for path in question.paths]
    head = model.get_output_embeddings().weight.detach()[label_tokens].double().numpy()
    step = PrefillStep(model)
    return Real(
        step=step,
        digest=weights_digest(step),
        prompts=prompts,
        label_tokens=label_tokens,
        embeddings=model.get_input_embeddings().weight.detach().numpy(),
        head=head,
        logprobs=np.array([scores.logprobs for scores in reference.scores(texts, task)]),
        prefix=prefix,
        past=past,
    )


def rows_of(real: Real, num_tokens: int) -> Iterator[tuple[list[int], int]]:
    """(tickets, tokens in the past): the shortest tickets packed, and the longest one that fits alone, twice each."""
    for start in (0, len(real.prefix)):
        sizes = np.array([len(prompt) - start for prompt in real.prompts])
        yield [int(i) for i in np.flatnonzero(np.cumsum(sizes) <= num_tokens)], start
        yield [int(np.flatnonzero(sizes <= num_tokens)[-1])], start


@pytest.mark.parametrize("num_tokens", TOKEN_BUCKETS)
def test_every_bucket_has_pytorchs_log_probabilities_and_passes_the_check(
    real: Real, tmp_path: Path, num_tokens: int
) -> None:
    spec = write_static_graph(real.step, static_spec(real.step, "fp32", num_tokens, PAST), real.digest, tmp_path)
    path = tmp_path / spec.file
    try:
        checked = check_graph(load_graph(path), VERSIONS.split(","), spec)
        assert checked.passed, checked.lines()
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for tickets, start in rows_of(real, num_tokens):
            row, ends = real.row(tickets, start)
            feeds = row.feeds(spec, real.step.inverse_frequencies.numpy())
            (hidden,) = session.run([spec.hidden_out], feeds)
            found, expected = real.normed_logprobs(spec, hidden[ends]), real.logprobs[tickets]
            np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))
            np.testing.assert_allclose(found, expected, atol=REAL_LOGPROB, rtol=0)
    finally:
        path.unlink(missing_ok=True)
