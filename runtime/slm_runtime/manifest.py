"""The contract between slm-export and slm-run: what a bundle holds and how its graphs are called.

Standard library only. `GraphSpec` is the one home of every tensor name. Axis letters: B rows, S new tokens,
P past tokens, T = P + S, N scored positions, D hidden size, H / Hkv query / key-value heads, Dh head dim, V vocabulary.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
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
    precision: str
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
class Manifest:
    """Everything that is known about a bundle.

    `lm_head` is None when the head is tied to the embedding. `special_tokens` (`eos_token`, `bos_token`, ...) are the
    names that a chat template may use. `coreml` holds the graphs of the CoreML profile, none without it.
    """

    model: ModelInfo
    decoder: GraphSpec
    normalizer: NormalizerSpec
    roofline: RooflineSpec
    embeddings: MatrixSpec
    lm_head: MatrixSpec | None
    min_onnxruntime: str
    special_tokens: Mapping[str, str]
    files: Mapping[str, FileRecord]
    tools: Mapping[str, str]
    parity: tuple[ParityRecord, ...] = field(default_factory=tuple)
    coreml: tuple[StaticGraphSpec, ...] = field(default_factory=tuple)
    format_version: int = FORMAT_VERSION

    @property
    def head(self) -> MatrixSpec:
        """The matrix that turns hidden states into logits."""
        return self.lm_head or self.embeddings

    @property
    def decoder_bytes(self) -> int:
        """Size of the decoder's weights on disk."""
        return self.files[self.decoder.data_file].size_bytes

    @property
    def decoder_digest(self) -> str:
        """Digest of the decoder's graph and weights."""
        return f"{self.files[self.decoder.file].sha256} {self.files[self.decoder.data_file].sha256}"

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
    head = data["lm_head"]
    files = {_safe_name(name): FileRecord(**record) for name, record in data["files"].items()}
    manifest = Manifest(
        model=ModelInfo(**data["model"]),
        decoder=GraphSpec(**data["decoder"]),
        normalizer=NormalizerSpec(**data["normalizer"]),
        roofline=RooflineSpec(**data["roofline"]),
        embeddings=MatrixSpec(**data["embeddings"]),
        lm_head=None if head is None else MatrixSpec(**head),
        min_onnxruntime=str(data["min_onnxruntime"]),
        special_tokens=dict(data["special_tokens"]),
        files=files,
        tools=dict(data["tools"]),
        parity=tuple(ParityRecord(**record) for record in data["parity"]),
        coreml=tuple(StaticGraphSpec(**graph) for graph in data.get("coreml", [])),
    )
    decoder = manifest.decoder
    graphs = {decoder.file, decoder.data_file, manifest.normalizer.file, manifest.roofline.file}
    used = graphs | {manifest.embeddings.file, manifest.head.file}
    used.update(*(graph.files for graph in manifest.coreml))
    if missing := sorted((used | {TOKENIZER_FILE, TEMPLATE_FILE}) - set(files)):
        raise ValueError(f"no digest recorded for {', '.join(missing)}")
    return manifest


def _safe_name(name: str) -> str:
    """`name`, which must stay inside the bundle: a manifest may come from anyone."""
    if Path(name).name != name or name in {"", ".", ".."}:
        raise ValueError(f"file name {name!r} leaves the bundle")
    return name
