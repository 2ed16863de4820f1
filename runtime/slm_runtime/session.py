"""Open graphs, run batches: onnxruntime on the CPU. Axis letters as in `manifest`."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from slm_runtime.errors import ArtifactError, GraphMismatchError
from slm_runtime.manifest import GraphSpec, Manifest, NormalizerSpec, RooflineSpec
from slm_runtime.matrix import Matrix
from slm_runtime.model_input import ModelInput
from slm_runtime.prepacked import PrepackedGraph
from slm_runtime.scoring import KEPT_DECIMALS

Float32 = NDArray[np.float32]
NORMALIZER_CHUNK_ROWS = 4096
PROVIDERS = {"cpu": "CPUExecutionProvider", "coreml": "CoreMLExecutionProvider"}


@dataclass(frozen=True)
class Past:
    """Keys and values of the tokens before a batch: per layer and kind one [1, Hkv, P, Dh], never written to."""

    arrays: tuple[Float32, ...]

    @property
    def num_tokens(self) -> int:
        """P"""
        return self.arrays[0].shape[2]


def empty_past(spec: GraphSpec) -> Past:
    """A past of no tokens."""
    return Past(tuple(np.zeros((1, spec.num_kv_heads, 0, spec.head_dim), np.float32) for _ in spec.past_names()))


def appended(past: Past, new: Sequence[Float32]) -> Past:
    """`past` followed by the tokens of `new`, per layer and kind [B, Hkv, S, Dh], row after row."""
    joined = []
    for old, rows in zip(past.arrays, new, strict=True):
        flat = rows.transpose(1, 0, 2, 3).reshape(1, rows.shape[1], -1, rows.shape[3])
        array = np.concatenate((old, flat), axis=2)
        array.setflags(write=False)
        joined.append(array)
    return Past(tuple(joined))


class DecoderSession:
    """A decoder graph of a bundle, ready to run.

    Raises:
        ArtifactError: this onnxruntime is too old for the bundle, or cannot open the graph.
        GraphMismatchError: the graph's inputs and outputs are not those of the manifest.
    """

    room = None  # rows and pasts may have any length

    def __init__(self, folder: Path, manifest: Manifest, graph: GraphSpec, *, num_threads: int) -> None:
        _check_version(folder, manifest.min_onnxruntime)
        self.spec = graph
        self.precision = graph.precision
        self.num_threads = num_threads
        self.provider = PROVIDERS["cpu"]
        self._session = _open_decoder(folder, manifest, graph, num_threads, self.provider)
        _check_names(folder / self.spec.file, self._session, self.spec.input_names(), self.spec.output_names())
        self._embeddings = Matrix(folder, manifest.embeddings)

    def last_hidden(self, model_input: ModelInput, past: Past) -> Float32:
        """Hidden states of the scored positions, [N, D], in the order of `score_index`."""
        return self._session.run([self.spec.last_hidden], self._feeds(model_input, past))[0]

    def with_present(self, model_input: ModelInput, past: Past) -> tuple[Float32, Past]:
        """As `last_hidden`, and `past` followed by the keys and values of all B * S tokens, row after row."""
        hidden, *new = self._session.run(self.spec.output_names(), self._feeds(model_input, past))
        return hidden, appended(past, new)

    def processed_tokens(self, rows: int, length: int, past_len: int) -> int:  # noqa: ARG002 (any length is computed)
        """What the model computes for `rows` rows of `length` tokens, padding included."""
        return rows * length

    def describe(self) -> list[dict[str, Any]]:
        """Nothing to tell beyond the provider: one graph, all of it on the CPU."""
        return []

    def _feeds(self, model_input: ModelInput, past: Past) -> dict[str, NDArray[Any]]:
        spec = self.spec
        own: dict[str, NDArray[Any]] = {
            spec.inputs_embeds: self._embeddings.rows(model_input.token_ids),
            spec.position_ids: model_input.position_ids,
            spec.attention_bias: model_input.attention_bias,
            spec.score_index: model_input.score_index,
        }
        return own | dict(zip(spec.past_names(), past.arrays, strict=True))


class Normalizer:
    """The full-vocabulary log-normaliser: many hidden states against the memory-mapped head, chunk by chunk."""

    def __init__(self, folder: Path, spec: NormalizerSpec, head: Matrix, *, num_threads: int) -> None:
        self._spec = spec
        self._head = head
        self._session = _open(folder / spec.file, _options(num_threads), PROVIDERS["cpu"])
        _check_names(folder / spec.file, self._session, [spec.hidden, spec.head_rows], [spec.log_norm])

    def log_norm(self, hidden: Float32) -> NDArray[np.float64]:
        """log(sum(exp(logits))) over the vocabulary, [N], for hidden states [N, D]; of each row alone."""
        if len(hidden) == 1:  # onnxruntime's product of a single row adds up in another order
            return self.log_norm(np.repeat(hidden, 2, axis=0))[:1]
        total = np.full(len(hidden), -np.inf)
        for rows in self._head.chunks(NORMALIZER_CHUNK_ROWS):
            feeds = {self._spec.hidden: hidden, self._spec.head_rows: rows}
            part = self._session.run([self._spec.log_norm], feeds)[0]
            with np.errstate(invalid="ignore"):  # what is not a number becomes the error of its row
                total = np.logaddexp(total, part.astype(np.float64))
        return np.round(total, KEPT_DECIMALS)


class Roofline:
    """The decoder's weight products alone, to compare its speed with."""

    def __init__(self, folder: Path, spec: RooflineSpec, hidden_size: int, *, num_threads: int) -> None:
        self._spec = spec
        self._hidden_size = hidden_size
        self._session = _open(folder / spec.file, _options(num_threads), PROVIDERS["cpu"])

    def run_s(self, num_tokens: int) -> float:
        """Seconds that the products of `num_tokens` tokens take."""
        states = np.random.default_rng(0).normal(size=(num_tokens, self._hidden_size)).astype(np.float32)
        started = time.perf_counter()
        self._session.run([self._spec.result], {self._spec.states: states})
        return time.perf_counter() - started


def _open_decoder(
    folder: Path, manifest: Manifest, graph: GraphSpec, num_threads: int, provider: str
) -> ort.InferenceSession:
    """The decoder, from its prepacked copy where there is one."""
    copy = PrepackedGraph(manifest.graph_digest(graph), manifest.weight_bytes(graph))
    if copy.ready:
        options = _options(num_threads)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # the copy is optimised already
        try:
            return _open(copy.path, options, provider)
        except ArtifactError:
            copy.discard()
    return _open(folder / graph.file, _options(num_threads), provider)


def keep_prepacked(folder: Path, manifest: Manifest, graph: GraphSpec, *, num_threads: int) -> bool:
    """Leave a prepacked copy of a decoder for the next start; True when one was made.

    Takes about as long as opening the decoder twice and as much memory: call it when no session is open.
    """
    copy = PrepackedGraph(manifest.graph_digest(graph), manifest.weight_bytes(graph))
    options = _options(num_threads)
    if copy.ready or not copy.write_with(options):
        return False
    try:
        _open(folder / graph.file, options, PROVIDERS["cpu"])
    except ArtifactError:
        copy.abandon()
        return False
    copy.finish()
    return True


def _options(num_threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # patterns are kept per shape, and there are thousands of shapes
    options.log_severity_level = 4  # stderr is for people, and every error is raised
    return options


def _open(path: Path, options: ort.SessionOptions, provider: str) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(str(path.absolute()), options, providers=[provider])
    except Exception as error:  # onnxruntime raises a dozen unrelated classes
        reason = " ".join(str(error).split())
        raise ArtifactError(
            f"{path}: onnxruntime {ort.__version__} cannot open it ({reason[:300]}); "
            "upgrade onnxruntime or export the bundle again"
        ) from error


def _check_names(path: Path, session: ort.InferenceSession, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    found: Mapping[str, list[str]] = {
        "inputs": [value.name for value in session.get_inputs()],
        "outputs": [value.name for value in session.get_outputs()],
    }
    for kind, expected in (("inputs", inputs), ("outputs", outputs)):
        if odd := sorted(set(found[kind]) ^ set(expected)):
            raise GraphMismatchError(
                f"{path}: its {kind} are not those of the manifest (differs in {', '.join(odd[:4])}); "
                "export the bundle again"
            )


def is_older(version: str, minimum: str) -> bool:
    """Whether `version` of onnxruntime comes before version `minimum`."""
    return _numbers(version) < _numbers(minimum)


def _check_version(folder: Path, minimum: str) -> None:
    if is_older(ort.__version__, minimum):
        raise ArtifactError(
            f"{folder}: needs onnxruntime {minimum} or newer, this is {ort.__version__}; pip install -U onnxruntime"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
