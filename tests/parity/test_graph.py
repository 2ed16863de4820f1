"""Ladder, step 1 to 3: the exported graph against transformers' own forward, on tiny random models.

Every comparison has a twin that breaks one thing (positions, mask, keys and values) and must be noticed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from tiny_models import make_model
from tolerances import TINY_HIDDEN

from slm_export.decoder import PrefillStep
from slm_export.onnx_export import IR_VERSION, OPSET, export_decoder, graph_spec
from slm_runtime.manifest import GraphSpec

VOCABULARY = 300
FAMILIES = ("qwen2", "qwen3", "llama")
MASKED = -1e9


@dataclass
class Exported:
    """A tiny model, its graph, and what transformers computes for one token sequence."""

    folder: Path
    spec: GraphSpec
    session: ort.InferenceSession
    embeds: np.ndarray  # [S, D]
    hidden: np.ndarray  # [S, D]
    present: dict[str, np.ndarray]  # [1, Hkv, S, Dh] each

    def run(
        self, embeds: np.ndarray, positions: np.ndarray, bias: np.ndarray, past: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Hidden states [B, S, D] and presents for `embeds` [B, S, D]."""
        spec, (rows, length, size) = self.spec, embeds.shape
        feeds = {
            spec.inputs_embeds: embeds,
            spec.position_ids: positions,
            spec.attention_bias: bias,
            spec.score_index: np.arange(rows * length),
        }
        hidden, *present = self.session.run(None, feeds | past)
        return hidden.reshape(rows, length, size), dict(zip(spec.present_names(), present, strict=True))

    def past(self, length: int) -> dict[str, np.ndarray]:
        """The first `length` keys and values that transformers computed."""
        names = zip(self.spec.past_names(), self.spec.present_names(), strict=True)
        return {past: self.present[present][:, :, :length] for past, present in names}


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = make_model(request.param, VOCABULARY)
    step = PrefillStep(model)
    folder = tmp_path_factory.mktemp(request.param)
    spec = graph_spec(step.arch, file="decoder.onnx", precision="fp32")
    export_decoder(step, spec, folder)
    token_ids = torch.randint(0, VOCABULARY, (1, 41), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = model.model(token_ids, use_cache=True)
        embeds = model.get_input_embeddings()(token_ids)[0].numpy()
    legacy = output.past_key_values.to_legacy_cache()
    present = {
        spec.present_name(layer, kind): tensor.numpy()
        for layer, pair in enumerate(legacy)
        for kind, tensor in zip(("key", "value"), pair, strict=True)
    }
    session = ort.InferenceSession(folder / spec.file, providers=["CPUExecutionProvider"])
    return Exported(folder, spec, session, embeds, output.last_hidden_state[0].numpy(), present)


def causal_bias(rows: int, length: int, past: int) -> np.ndarray:
    bias = np.triu(np.full((length, past + length), MASKED, np.float32), past + 1)
    return np.broadcast_to(bias, (rows, 1, length, past + length)).copy()


def positions(rows: int, length: int, past: int) -> np.ndarray:
    return np.broadcast_to(np.arange(past, past + length), (rows, length)).copy()


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=TINY_HIDDEN, rtol=0)


def test_hidden_states_and_presents_equal_transformers(exported: Exported) -> None:
    length = len(exported.embeds)
    hidden, present = exported.run(
        exported.embeds[None], positions(1, length, 0), causal_bias(1, length, 0), exported.past(0)
    )
    assert_close(hidden[0], exported.hidden)
    for name, expected in exported.present.items():
        assert_close(present[name], expected)


@pytest.mark.parametrize("cut", [1, 2, 20, 39, 40])
def test_cached_equals_uncached_at_every_cut_and_one_past_serves_many_rows(exported: Exported, cut: int) -> None:
    rest = exported.embeds[cut:]
    rows = np.stack([rest] * 3)
    hidden, _ = exported.run(rows, positions(3, len(rest), cut), causal_bias(3, len(rest), cut), exported.past(cut))
    for row in hidden:
        assert_close(row, exported.hidden[cut:])


def test_padded_and_packed_rows_equal_single(exported: Exported) -> None:
    """Two tickets of 9 and 14 tokens after a past of 5: padded to two rows, and packed into one."""
    past, first, second = 5, exported.embeds[5:14], exported.embeds[5:19]
    padded = np.stack([np.pad(first, ((0, 5), (0, 0))), second])
    hidden, _ = exported.run(padded, positions(2, 14, past), causal_bias(2, 14, past), exported.past(past))
    assert_close(hidden[0, :9], exported.hidden[5:14])
    assert_close(hidden[1], exported.hidden[5:19])

    packed = np.concatenate([first, second])[None]
    order = np.concatenate([positions(1, 9, past), positions(1, 14, past)], axis=1)
    bias = causal_bias(1, 23, past)
    bias[:, :, 9:, past : past + 9] = MASKED
    hidden, _ = exported.run(packed, order, bias, exported.past(past))
    assert_close(hidden[0, :9], exported.hidden[5:14])
    assert_close(hidden[0, 9:], exported.hidden[5:19])


def shifted(arrays: dict) -> None:
    arrays["positions"] += 3


def unmasked(arrays: dict) -> None:
    arrays["bias"][:] = 0


def swapped(arrays: dict) -> None:
    past = arrays["past"]
    for name in [name for name in past if name.endswith("key")]:
        other = name.removesuffix("key") + "value"
        past[name], past[other] = past[other], past[name]


@pytest.mark.parametrize("breakage", [shifted, unmasked, swapped])
def test_a_broken_input_is_noticed(exported: Exported, breakage: Callable[[dict], None]) -> None:
    cut = 20
    rest = exported.embeds[cut:]
    arrays = {
        "positions": positions(1, len(rest), cut),
        "bias": causal_bias(1, len(rest), cut),
        "past": exported.past(cut),
    }
    breakage(arrays)
    hidden, _ = exported.run(rest[None], arrays["positions"], arrays["bias"], arrays["past"])
    with pytest.raises(AssertionError):
        assert_close(hidden[0], exported.hidden[cut:])


def test_only_scored_positions_come_out(exported: Exported) -> None:
    spec, length = exported.spec, len(exported.embeds)
    feeds = {
        spec.inputs_embeds: exported.embeds[None],
        spec.position_ids: positions(1, length, 0),
        spec.attention_bias: causal_bias(1, length, 0),
        spec.score_index: np.array([40, 3]),
    }
    (hidden,) = exported.session.run([spec.last_hidden], feeds | exported.past(0))
    assert_close(hidden, exported.hidden[[40, 3]])


def test_c33_versions_and_names_are_the_pinned_ones(exported: Exported) -> None:
    model = onnx.load(exported.folder / exported.spec.file, load_external_data=False)
    assert model.ir_version == IR_VERSION
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == OPSET
    assert [value.name for value in model.graph.input] == exported.spec.input_names()
    assert [value.name for value in model.graph.output] == exported.spec.output_names()


def test_head_dim_is_read_and_not_derived() -> None:
    step = PrefillStep(make_model("qwen3", VOCABULARY))
    assert (step.arch.hidden_size, step.arch.num_heads, step.arch.head_dim) == (64, 8, 16)
