"""A decoder made of graphs with fixed shapes; to its callers the same as the dynamic one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slm_runtime.coreml.room import Bucket, Room
from slm_runtime.coreml.row import Feeds, RowShaper
from slm_runtime.errors import ProviderError
from slm_runtime.manifest import Manifest
from slm_runtime.matrix import Matrix
from slm_runtime.model_input import ModelInput
from slm_runtime.session import Past, appended
from slm_runtime.static_graph import StaticGraphSpec, StaticPrecision

Float32 = NDArray[np.float32]
# Every open graph holds all weights.
KEPT_SESSIONS = 2


class OpenGraph(Protocol):
    """A graph that can be run. `nodes` counts its nodes by the provider that runs them, in `partitions` pieces."""

    @property
    def nodes(self) -> dict[str, int]: ...

    @property
    def partitions(self) -> int: ...

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[NDArray[Any]]: ...


@dataclass(frozen=True)
class Compiled:
    """A graph and the folder of its compiled model."""

    spec: StaticGraphSpec
    cache: Path


OpenCompiled = Callable[[Compiled], OpenGraph]


class StaticDecoderSession:
    """The interface of `DecoderSession`, row by row, each in the smallest bucket that holds it.

    `graphs` are of one precision, one per shape. They are opened when a row needs them, the two used last stay open.
    A row or a past that fits no bucket must not come here: `room` says what fits.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        graphs: Sequence[Compiled],
        open_graph: OpenCompiled,
        *,
        provider: str,
        num_threads: int,
    ) -> None:
        self.spec = manifest.decoder
        self.num_threads = num_threads
        self.provider = provider
        self.precision: StaticPrecision = graphs[0].spec.precision
        self.room = Room.of_graphs(graph.spec for graph in graphs)
        self._graphs = {Bucket(graph.spec.num_tokens, graph.spec.past_len): graph for graph in graphs}
        self._open_graph = open_graph
        self._open: dict[Bucket, OpenGraph] = {}
        self._calls: Counter[Bucket] = Counter()
        self._assigned: dict[Bucket, tuple[dict[str, int], int]] = {}
        self._embeddings = Matrix(folder, manifest.embeddings)
        self._shaper = RowShaper(folder, graphs[0].spec)

    def last_hidden(self, model_input: ModelInput, past: Past) -> Float32:
        """Hidden states of the scored positions, [N, D], in the order of `score_index`."""
        names = [StaticGraphSpec.hidden_out]
        hidden = [self._run_row(model_input, past, row, names)[0] for row in range(len(model_input.token_ids))]
        return np.concatenate(hidden)[model_input.score_index]

    def with_present(self, model_input: ModelInput, past: Past) -> tuple[Float32, Past]:
        """As `last_hidden`, and `past` followed by the keys and values of all B * S tokens, row after row."""
        names = next(iter(self._graphs.values())).spec.output_names()
        rows = [self._run_row(model_input, past, row, names) for row in range(len(model_input.token_ids))]
        hidden, *new = (np.stack(arrays) for arrays in zip(*rows, strict=True))
        return hidden.reshape(-1, hidden.shape[-1])[model_input.score_index], appended(past, new)

    def processed_tokens(self, rows: int, length: int, past_len: int) -> int:
        """What the model computes for `rows` rows of `length` tokens, padding included."""
        bucket = self.room.bucket(length, past_len)
        return rows * (length if bucket is None else bucket.num_tokens)

    def open_smallest(self) -> None:
        """Open one graph now, so that a provider that fails does so before any work."""
        self._session(self.room.buckets[0])

    def describe(self) -> list[dict[str, Any]]:
        """What ran where: calls of every bucket and, where it was opened, its nodes by provider and its pieces."""
        entries = []
        for bucket in self.room.buckets:
            nodes, partitions = self._assigned.get(bucket, (None, None))
            entries.append(
                {
                    "graph": self._graphs[bucket].spec.file,
                    "tokens": bucket.num_tokens,
                    "past": bucket.past_len,
                    "calls": self._calls[bucket],
                    "nodes": nodes,
                    "partitions": partitions,
                }
            )
        return entries

    def _run_row(self, model_input: ModelInput, past: Past, row: int, names: Sequence[str]) -> list[Float32]:
        """Normed hidden states [S, D] and whatever else is in `names`, cut to the row's own S tokens, in float32."""
        token_ids = model_input.token_ids[row]
        bucket = self.room.bucket(len(token_ids), past.num_tokens)
        assert bucket is not None, f"{len(token_ids)} tokens after {past.num_tokens} fit no bucket"
        spec = self._graphs[bucket].spec
        feeds = self._shaper.feeds(
            spec,
            self._embeddings.rows(token_ids),
            model_input.position_ids[row],
            model_input.attention_bias[row, 0],
            past.arrays,
        )
        try:
            hidden, *present = self._session(bucket).run(names, feeds)
        except ProviderError as error:
            raise ProviderError(f"{spec.file}: {error}; go on with --provider cpu") from error
        self._calls[bucket] += 1
        size = len(token_ids)
        return [self._shaper.normed(spec, hidden[:size]), *(array[:, :size].astype(np.float32) for array in present)]

    def _session(self, bucket: Bucket) -> OpenGraph:
        session = self._open.pop(bucket, None)
        if session is None:
            while len(self._open) >= KEPT_SESSIONS:
                del self._open[next(iter(self._open))]
            session = self._open_graph(self._graphs[bucket])
            self._assigned[bucket] = session.nodes, session.partitions
        self._open[bucket] = session  # used last
        return session
