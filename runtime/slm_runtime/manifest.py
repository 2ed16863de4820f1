"""The contract between slm-export and slm-run: what a bundle holds and how its graphs are called.

Standard library only. `GraphSpec` is the one home of every tensor name. Axis letters: B rows, S new tokens,
P past tokens, T = P + S, N scored positions, D hidden size, H / Hkv query / key-value heads, Dh head dim, V vocabulary.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from slm_runtime.errors import FormatError
from slm_runtime.static_graph import StaticGraphSpec

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
GOLDEN_FILE = "golden.json"
KvKind = Literal["key", "value"]
KV_KINDS: tuple[KvKind, KvKind] = ("key", "value")
GraphPrecision = Literal["fp32", "int8"]


@dataclass(frozen=True)
class GraphSpec:
    """One decoder graph, the prefill step: new tokens in, hidden states of the scored positions out.

    | name | shape |
    |---|---|
    | in `inputs_embeds` | [B, S, D] float |
    | in `position_ids` | [B, S] int64 |
    | in `attention_bias` | [B, 1, S, T] float, 0 or large negative |
    | in `score_index` | [N] int64, flat index into B * S |
    | in `past_key_values.{i}.key/value` | [1 or B, Hkv, P, Dh]; P may be 0 |
    | out `last_hidden` | [N, D], after the final norm |
    | out `present.{i}.key/value` | [B, Hkv, S, Dh], new tokens only |
    """

    file: str
    precision: GraphPrecision
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int

    inputs_embeds = "inputs_embeds"
    position_ids = "position_ids"
    attention_bias = "attention_bias"
    score_index = "score_index"
    last_hidden = "last_hidden"

    @property
    def data_file(self) -> str:
        """The file beside the graph that holds its weights."""
        return Path(self.file).with_suffix(".data").name

    @staticmethod
    def past_name(layer: int, kind: KvKind) -> str:
        return f"past_key_values.{layer}.{kind}"

    @staticmethod
    def present_name(layer: int, kind: KvKind) -> str:
        return f"present.{layer}.{kind}"

    def layer_kinds(self) -> Iterator[tuple[int, KvKind]]:
        """(layer, key or value) in the order in which the graph lists its pasts and presents."""
        return ((layer, kind) for layer in range(self.num_layers) for kind in KV_KINDS)

    def past_names(self) -> list[str]:
        return [self.past_name(layer, kind) for layer, kind in self.layer_kinds()]

    def present_names(self) -> list[str]:
        return [self.present_name(layer, kind) for layer, kind in self.layer_kinds()]

    def input_names(self) -> list[str]:
        own = [self.inputs_embeds, self.position_ids, self.attention_bias, self.score_index]
        return own + self.past_names()

    def output_names(self) -> list[str]:
        return [self.last_hidden, *self.present_names()]


@dataclass(frozen=True)
class NormalizerSpec:
    """The small graph of the full-vocabulary log-normaliser: `hidden` [N, D], `head_rows` [V', D] -> `log_norm` [N]."""

    file: str

    hidden = "hidden"
    head_rows = "head_rows"
    log_norm = "log_norm"


@dataclass(frozen=True)
class RooflineSpec:
    """The decoder's weight products alone, one after the other: `states` [M, D] -> `result` [M, D].

    What `slm-run bench` compares the decoder with. The weights are the decoder's own file.
    """

    file: str

    states = "states"
    result = "result"


@dataclass(frozen=True)
class MatrixSpec:
    """A [V, D] matrix in a `.npy` file; `bfloat16` is stored as the upper 16 bits of float32, in uint16."""

    file: str
    dtype: Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class FileRecord:
    """Size and sha256 of one file of the bundle."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class ModelInfo:
    """Where the weights came from and what may be done with them. `source` is what slm-export was given."""

    id: str
    revision: str | None
    source: str
    licence: str
    family: str
    max_positions: int


@dataclass(frozen=True)
class ParityRecord:
    """How the bundle compared with the PyTorch reference when it was exported."""

    workload: str
    scoring: str
    num_tickets: int
    labels_equal: int
    max_logprob_diff: float
    tolerance: float


@dataclass(frozen=True)
class MarginBound:
    """How far the int8 decoder moved margins at export, on calibration rows under one scoring rule. Measured, no proof.

    A row's error is the largest change, in nats, of the distance between its int8 winner and another label. `bound` is
    the largest error of `num_rows` rows with up to `max_labels` labels: with `confidence`, no more than `beyond_share`
    of such rows err by more. On `labels_differ` rows int8 alone chose another label than fp32; `median_error` is the
    median change of a label's log-probability against the row's mean change.
    """

    scoring: str
    num_rows: int
    max_labels: int
    bound: float
    confidence: float
    beyond_share: float
    labels_differ: int
    median_error: float

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ValueError(f"a margin bound of {self.bound} nats")


@dataclass(frozen=True)
class OpeningSpec:
    """The tokens that every prompt of the model's template begins with, and their keys and values in fp32.

    `file` holds float32 [2 L, Hkv, len(token_ids), Dh], in the order of `GraphSpec.past_names` and as the int8 decoder
    keeps them.
    """

    token_ids: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class Int8Record:
    """The int8 decoder of a bundle and what was measured with it.

    `seal` ties the bounds to the decoder and to the `opening`, None where prompts have none in common.
    """

    decoder: GraphSpec
    bounds: tuple[MarginBound, ...]
    seal: str
    opening: OpeningSpec | None = None

    def bound_for(self, scoring: str) -> MarginBound | None:
        """The bound that was measured under a scoring rule."""
        return next((bound for bound in self.bounds if bound.scoring == scoring), None)


def seal_bounds(int8_digest: str, bounds: Sequence[MarginBound]) -> str:
    """sha256 over `Manifest.int8_digest` and the bounds that were measured with it."""
    content = json.dumps([int8_digest, *map(asdict, bounds)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """Everything that is known about a bundle.

    `decoder` is the fp32 graph, or the int8 one in a bundle that holds no other. `lm_head` is None when the head is
    tied to the embedding. `special_tokens` (`eos_token`, `bos_token`, ...) are the names that a chat template may use.
    `coreml` holds the graphs of the CoreML profile, none without it.
    """

    model: ModelInfo
    decoder: GraphSpec
    normalizer: NormalizerSpec
    roofline: RooflineSpec | None
    embeddings: MatrixSpec
    lm_head: MatrixSpec | None
    min_onnxruntime: str
    special_tokens: Mapping[str, str]
    files: Mapping[str, FileRecord]
    tools: Mapping[str, str]
    parity: tuple[ParityRecord, ...] = field(default_factory=tuple)
    int8: Int8Record | None = None
    coreml: tuple[StaticGraphSpec, ...] = field(default_factory=tuple)
    format_version: int = FORMAT_VERSION

    @property
    def head(self) -> MatrixSpec:
        """The matrix that turns hidden states into logits."""
        return self.lm_head or self.embeddings

    def graph(self, precision: GraphPrecision) -> GraphSpec | None:
        """The decoder in this precision, where the bundle holds it."""
        graphs = (self.decoder, None if self.int8 is None else self.int8.decoder)
        return next((graph for graph in graphs if graph is not None and graph.precision == precision), None)

    def weight_bytes(self, graph: GraphSpec) -> int:
        """Size of a decoder's weights on disk."""
        return self.files[graph.data_file].size_bytes

    def graph_digest(self, graph: GraphSpec) -> str:
        """Digest of a decoder's graph and weights."""
        return f"{self.files[graph.file].sha256} {self.files[graph.data_file].sha256}"

    def int8_digest(self, decoder: GraphSpec, opening: OpeningSpec | None) -> str:
        """Digest of all that decides what an int8 decoder answers."""
        own = self.graph_digest(decoder)
        return own if opening is None else f"{own} {self.files[opening.file].sha256} {list(opening.token_ids)}"

    @property
    def digest(self) -> str:
        """sha256 over the names and digests of all files: two bundles with the same digest answer alike."""
        lines = (f"{name} {record.sha256}\n" for name, record in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the bundle in `folder`.

    Raises:
        FormatError: no manifest there, not JSON, fields missing or of another type, or a newer format.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise FormatError(f"{folder}: not a bundle, {MANIFEST_FILE} is missing; make one with slm-export")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read ({error}); export the bundle again") from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{path}: bundle format {version!r}, this version reads format {FORMAT_VERSION}; "
            "upgrade slm-runtime, or export the bundle again"
        )
    try:
        return _parse(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path}: damaged ({error!r}); export the bundle again") from error


def _parse(data: dict[str, Any]) -> Manifest:
    head, roofline, int8 = data["lm_head"], data["roofline"], data.get("int8")
    files = {_safe_name(name): FileRecord(**record) for name, record in data["files"].items()}
    manifest = Manifest(
        model=ModelInfo(**data["model"]),
        decoder=GraphSpec(**data["decoder"]),
        normalizer=NormalizerSpec(**data["normalizer"]),
        roofline=None if roofline is None else RooflineSpec(**roofline),
        embeddings=MatrixSpec(**data["embeddings"]),
        lm_head=None if head is None else MatrixSpec(**head),
        min_onnxruntime=str(data["min_onnxruntime"]),
        special_tokens=dict(data["special_tokens"]),
        files=files,
        tools=dict(data["tools"]),
        parity=tuple(ParityRecord(**record) for record in data["parity"]),
        int8=None if int8 is None else _parse_int8(int8),
        coreml=tuple(StaticGraphSpec(**graph) for graph in data.get("coreml", [])),
    )
    if missing := sorted(_used_files(manifest) - set(files)):
        raise ValueError(f"no digest recorded for {', '.join(missing)}")
    if manifest.int8 is not None and manifest.int8.seal != seal_bounds(
        manifest.int8_digest(manifest.int8.decoder, manifest.int8.opening), manifest.int8.bounds
    ):
        raise ValueError("the int8 margin bounds are not those that were measured with this int8 decoder")
    return manifest


def _parse_int8(data: dict[str, Any]) -> Int8Record:
    bounds = tuple(MarginBound(**bound) for bound in data["bounds"])
    opening = data.get("opening")
    if opening is not None:
        opening = OpeningSpec(tuple(map(int, opening["token_ids"])), str(opening["file"]))
    return Int8Record(GraphSpec(**data["decoder"]), bounds, str(data["seal"]), opening)


def _used_files(manifest: Manifest) -> set[str]:
    graphs = [manifest.decoder] if manifest.int8 is None else [manifest.decoder, manifest.int8.decoder]
    decoders = {name for graph in graphs for name in (graph.file, graph.data_file)}
    others = {manifest.normalizer.file, manifest.embeddings.file, manifest.head.file, TOKENIZER_FILE, TEMPLATE_FILE}
    static = {name for graph in manifest.coreml for name in graph.files}
    opening = {manifest.int8.opening.file} if manifest.int8 and manifest.int8.opening else set()
    return decoders | others | static | opening | ({manifest.roofline.file} if manifest.roofline else set())


def _safe_name(name: str) -> str:
    """`name`, which must stay inside the bundle: a manifest may come from anyone."""
    if Path(name).name != name or name in {"", ".", ".."}:
        raise ValueError(f"file name {name!r} leaves the bundle")
    return name
