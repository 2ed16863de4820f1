"""Ladder for the CoreML profile: each static graph on the CPU provider against transformers' own forward.

A row is single or packed, with or without a prefix, shorter than the graph or exactly as long. Every comparison has a
twin that breaks one input and must be noticed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from static_feeds import StaticRow, causal
from tiny_models import make_model
from tolerances import TINY_HIDDEN

from slm_export.coreml_export import static_spec, weights_digest, write_static_graph, write_static_graphs
from slm_export.decoder import PrefillStep
from slm_export.onnx_evaluate import Evaluation
from slm_export.static_profile import TOKEN_BUCKETS, StaticProfile
from slm_runtime.errors import SourceError
from slm_runtime.static_graph import StaticGraphSpec

FAMILIES = ("qwen2", "qwen3", "llama")
VOCABULARY, PAST = 300, 128
OPTIMISATIONS = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
# Float16 keeps 11 bits; a hidden state of order 1 went through some dozen roundings of states up to 16.
HALF_HIDDEN = 0.1


@dataclass
class Exported:
    """A tiny model, its static graphs, and what transformers computes for one sequence as long as any of them."""

    folder: Path
    graphs: dict[tuple[str, int], StaticGraphSpec]
    embeds: np.ndarray  # [tokens, D]
    hidden: np.ndarray  # [tokens, D], after the final norm
    present: dict[str, np.ndarray]  # [Hkv, tokens, Dh] each, by names of the graphs' outputs

    def past(self, length: int) -> dict[str, np.ndarray]:
        return {name.replace("present", "past"): array[:, :length] for name, array in self.present.items()}

    def row(self, start: int, stop: int) -> StaticRow:
        """The sequence's own tokens from `start` on, those before it as the past."""
        size = stop - start
        return StaticRow(self.embeds[start:stop], np.arange(start, stop), causal(size, start), self.past(start))

    def feeds(self, spec: StaticGraphSpec, row: StaticRow) -> dict[str, np.ndarray]:
        return row.feeds(spec, np.load(self.folder / spec.inverse_frequencies))

    def normed(self, spec: StaticGraphSpec, states: np.ndarray) -> np.ndarray:
        states = states.astype(np.float64)
        root = np.sqrt((states**2).mean(-1, keepdims=True) + spec.norm_epsilon)
        return states / root * np.load(self.folder / spec.final_norm)

    def run(
        self, spec: StaticGraphSpec, feeds: dict[str, np.ndarray], level: ort.GraphOptimizationLevel = OPTIMISATIONS[0]
    ) -> dict[str, np.ndarray]:
        """Outputs by name, the hidden states after the final norm."""
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(self.folder / spec.file, options, providers=["CPUExecutionProvider"])
        outputs = dict(zip(spec.output_names(), session.run(spec.output_names(), feeds), strict=True))
        outputs[spec.hidden_out] = self.normed(spec, outputs[spec.hidden_out])
        return outputs


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = make_model(request.param, VOCABULARY)
    folder = tmp_path_factory.mktemp(request.param)
    profile = StaticProfile(("fp32", "fp16"), TOKEN_BUCKETS, (PAST,))
    specs = write_static_graphs(PrefillStep(model), profile, folder, say=lambda _: None)
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(0, VOCABULARY, (1, PAST + max(TOKEN_BUCKETS)), generator=generator)
    with torch.no_grad():
        output = model.model(token_ids, use_cache=True)
        embeds = model.get_input_embeddings()(token_ids)[0].numpy()
    present = {
        f"present_{kind}_{layer}": tensor[0].numpy()
        for layer, pair in enumerate(output.past_key_values.to_legacy_cache())
        for kind, tensor in zip(("key", "value"), pair, strict=True)
    }
    graphs = {(spec.precision, spec.num_tokens): spec for spec in specs}
    return Exported(folder, graphs, embeds, output.last_hidden_state[0].numpy(), present)


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float = TINY_HIDDEN) -> None:
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("level", OPTIMISATIONS, ids=["plain", "optimised"])
@pytest.mark.parametrize("num_tokens", TOKEN_BUCKETS)
def test_every_bucket_equals_transformers_with_and_without_a_past(
    exported: Exported, num_tokens: int, level: ort.GraphOptimizationLevel
) -> None:
    spec = exported.graphs["fp32", num_tokens]
    for past, size in ((0, num_tokens), (0, num_tokens - 5), (1, num_tokens - 1), (23, 30), (PAST, num_tokens)):
        outputs = exported.run(spec, exported.feeds(spec, exported.row(past, past + size)), level)
        assert_close(outputs[spec.hidden_out][:size], exported.hidden[past : past + size])
        for name in spec.present_names():
            assert_close(outputs[name][:, :size], exported.present[name][:, past : past + size])
        assert all(np.isfinite(array).all() for array in outputs.values()), "padding too"


def packed(exported: Exported, past: int) -> StaticRow:
    """Two tickets that share 4 tokens and go on for 9 and 14: a tree in one row."""
    shared, first, second = (exported.embeds[past + a : past + b] for a, b in ((0, 4), (4, 13), (4, 18)))
    positions = past + np.concatenate([np.arange(4), np.arange(4, 13), np.arange(4, 18)])
    visible = causal(27, past)
    visible[13:, past + 4 : past + 13] = False
    return StaticRow(np.concatenate([shared, first, second]), positions, visible, exported.past(past))


@pytest.mark.parametrize("past", [0, 5, PAST])
@pytest.mark.parametrize("num_tokens", [64, 256])
def test_packed_tickets_equal_single_ones(exported: Exported, num_tokens: int, past: int) -> None:
    spec = exported.graphs["fp32", num_tokens]
    hidden = exported.run(spec, exported.feeds(spec, packed(exported, past)))[spec.hidden_out]
    assert_close(hidden[:13], exported.hidden[past : past + 13])
    assert_close(hidden[13:27], exported.hidden[past + 4 : past + 18])


def unmasked(feeds: dict[str, np.ndarray]) -> None:
    feeds["mask"][:] = 0


def unmasked_padding_of_the_past(feeds: dict[str, np.ndarray]) -> None:
    feeds["mask"][:, 20:PAST] = 0


def unsigned_sine(feeds: dict[str, np.ndarray]) -> None:
    feeds["sin"][:] = np.abs(feeds["sin"])


def shifted(feeds: dict[str, np.ndarray]) -> None:
    for name in ("cos", "sin"):
        feeds[name][1:] = feeds[name][:-1].copy()


def swapped(feeds: dict[str, np.ndarray]) -> None:
    feeds["past_key_1"], feeds["past_value_1"] = feeds["past_value_1"], feeds["past_key_1"]


@pytest.mark.parametrize("breakage", [unmasked, unmasked_padding_of_the_past, unsigned_sine, shifted, swapped])
def test_a_broken_input_is_noticed(exported: Exported, breakage: Callable[[dict[str, np.ndarray]], None]) -> None:
    spec = exported.graphs["fp32", 64]
    feeds = exported.feeds(spec, exported.row(20, 60))
    breakage(feeds)
    hidden = exported.run(spec, feeds)[spec.hidden_out]
    with pytest.raises(AssertionError):
        assert_close(hidden[:40], exported.hidden[20:60])


@pytest.mark.parametrize("num_tokens", [64, 512])
def test_float16_graphs_are_near_on_the_cpu_provider_and_with_every_result_rounded(
    exported: Exported, num_tokens: int
) -> None:
    spec = exported.graphs["fp16", num_tokens]
    feeds, expected = exported.feeds(spec, exported.row(20, 60)), exported.hidden[20:60]
    assert_close(exported.run(spec, feeds)[spec.hidden_out][:40], expected, HALF_HIDDEN)
    evaluation = Evaluation(onnx.load(exported.folder / spec.file), torch.float16)
    rounded = exported.normed(spec, evaluation.run(feeds)[spec.hidden_out])[:40]
    assert_close(rounded, expected, HALF_HIDDEN)
    assert np.abs(rounded - expected).max() > 1e-4, "nothing was rounded"


def test_the_evaluator_computes_what_onnxruntime_computes(exported: Exported) -> None:
    spec = exported.graphs["fp32", 64]
    feeds = exported.feeds(spec, exported.row(20, 80))
    seen: set[str] = set()
    model = onnx.load(exported.folder / spec.file)
    outputs = Evaluation(model).run(feeds, lambda name, _: seen.add(name))
    outputs[spec.hidden_out] = exported.normed(spec, outputs[spec.hidden_out])
    for name, expected in exported.run(spec, feeds).items():
        assert_close(outputs[name], expected)
    assert seen == {name for node in model.graph.node for name in node.output} | set(feeds)


def test_a_file_holds_its_contract_and_its_own_cache_key(exported: Exported) -> None:
    keys = set()
    for spec in exported.graphs.values():
        model = onnx.load(exported.folder / spec.file)
        assert [value.name for value in model.graph.input] == spec.input_names()
        assert [value.name for value in model.graph.output] == spec.output_names()
        assert {entry.key: entry.value for entry in model.metadata_props} == {"COREML_CACHE_KEY": spec.cache_key}
        assert spec.cache_key.isalnum()
        assert len(spec.cache_key) <= 64
        keys.add(spec.cache_key)
    assert len(keys) == len(exported.graphs)


def test_the_cache_key_follows_the_weights_and_nothing_else(tmp_path: Path) -> None:
    def key() -> str:
        spec = static_spec(step, "fp32", 64, 64)
        return write_static_graph(step, spec, weights_digest(step), tmp_path).cache_key

    step = PrefillStep(make_model("qwen2", VOCABULARY))
    before = key()
    step = PrefillStep(make_model("qwen2", VOCABULARY))
    assert key() == before
    with torch.no_grad():
        next(step.parameters())[0, 0] += 1
    assert key() != before


def test_a_weight_that_float16_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    step = PrefillStep(make_model("qwen2", VOCABULARY))
    with torch.no_grad():
        step.layers[1].down.weight[3, 4] = 1e5
    with pytest.raises(SourceError, match=r"layer_1_down_weight: holds 1e\+05.*--precision fp32"):
        write_static_graph(step, static_spec(step, "fp16", 64, 64), "", tmp_path)
