"""The int8 decoder: exact sums on every processor, no influence of neighbours, no change by the rotation."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_checkpoint
from transformers import AutoModelForCausalLM

from slm_export.decoder import PrefillStep, SoftmaxMean
from slm_export.int8.bounds import margin_errors, summarize
from slm_export.int8.exact_mean import ExactMean
from slm_export.int8.linear import MAX_ACTIVATION, MAX_WEIGHT, ZERO_POINT, IntegerProduct, QuantizedLinear
from slm_export.int8.prompts import calibration_samples
from slm_export.int8.quantize import quantize_step
from slm_export.int8.rotation import hadamard, mix_columns, random_orthogonal, rotate
from slm_export.int8.rounding import round_weight, search_scale, to_integers
from slm_export.onnx_export import export_decoder, graph_spec
from slm_runtime.workloads import seed_tickets

PROMPTS = [list(range(5, 40)), list(range(50, 70)), [7, 8, 9]]


def make_step(folder: Path, family: str = "qwen2") -> tuple[PrefillStep, torch.Tensor]:
    checkpoint = make_checkpoint(folder / "tiny", family, tied=True)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, local_files_only=True).eval()
    return PrefillStep(model).eval(), model.get_input_embeddings().weight.detach()


def step_inputs(step: PrefillStep, embedding: torch.Tensor, rows: list[list[int]], score: list[int]) -> tuple:
    length = len(rows[0])
    arch = step.arch
    empty = torch.zeros(1, arch.num_kv_heads, 0, arch.head_dim)
    bias = torch.full((length, length), torch.finfo(torch.float32).min).triu(1).expand(len(rows), 1, -1, -1)
    positions = torch.arange(length).expand(len(rows), -1)
    pasts = [(empty, empty)] * arch.num_layers
    return embedding[torch.tensor(rows)], positions, bias, torch.tensor(score), pasts


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_the_rotation_changes_no_result(tmp_path: Path, family: str) -> None:
    step, embedding = make_step(tmp_path, family)
    inputs = step_inputs(step, embedding, [PROMPTS[0], PROMPTS[0][::-1]], [3, 34, 69])
    with torch.no_grad():
        before, *keys_before = step(*inputs)
        rotate(step)
        after, *keys_after = step(*inputs)
    assert torch.allclose(before, after, atol=2e-5)
    assert torch.allclose(keys_before[0], keys_after[0], atol=2e-5), "keys stay in their own basis"


def test_rotations_are_orthogonal_and_the_same_every_time() -> None:
    for size in (64, 96, 896):
        matrix = random_orthogonal(size)
        assert torch.allclose(matrix @ matrix.T, torch.eye(size, dtype=torch.float64), atol=1e-12)
        assert torch.equal(matrix, random_orthogonal(size))
    states = torch.randn(3, 5, 64, dtype=torch.float64)
    assert torch.allclose(mix_columns(mix_columns(states, hadamard(16)), hadamard(16)), states)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_the_exported_graph_computes_what_the_rounded_step_computes(tmp_path: Path, family: str) -> None:
    step, embedding = make_step(tmp_path, family)
    inputs = step_inputs(step, embedding, [PROMPTS[0], PROMPTS[0][::-1]], [3, 34, 69])
    with torch.no_grad():
        fp32, *_ = step(*inputs)
        quantize_step(step, embedding, PROMPTS, say=lambda _: None)
        rounded, *_ = step(*inputs)
    spec = graph_spec(step.arch, file="decoder-int8.onnx", precision="int8")
    export_decoder(step, spec, tmp_path)
    session = ort.InferenceSession(str(tmp_path / spec.file))
    pasts = [tensor.numpy() for pair in inputs[4] for tensor in pair]
    names = [spec.inputs_embeds, spec.position_ids, spec.attention_bias, spec.score_index, *spec.past_names()]
    feeds = dict(zip(names, [tensor.numpy() for tensor in inputs[:4]] + pasts, strict=True))
    (hidden,) = session.run([spec.last_hidden], feeds)
    assert np.abs(hidden - rounded.numpy()).max() < 1e-3, "a value between two integers may fall either way"
    assert 0 < (fp32 - rounded).abs().max() < fp32.abs().max(), "it is rounded, and it is still the model"


def saturating_product(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """u8 x s8 as AVX2 without VNNI adds it: neighbouring products in saturating 16 bits, pairs in 32 (vpmaddubsw)."""
    products = rows[:, :, None].astype(np.int32) * weight[None].astype(np.int32)
    pairs = products[:, 0::2] + products[:, 1::2]
    return np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=1)


def test_c36_no_sum_saturates_on_a_processor_without_vnni() -> None:
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 256, size=(40, 64))
    rows[0] = 255
    full_range = generator.integers(-127, 128, size=(64, 8))
    assert (saturating_product(rows, full_range) != rows @ full_range).any(), "the oracle can tell"
    ours = np.concatenate((np.full((64, 1), MAX_WEIGHT), np.clip(full_range, -MAX_WEIGHT, MAX_WEIGHT)), axis=1)
    assert (saturating_product(rows, ours) == rows @ ours).all()


def test_c36_the_products_here_are_exact_integers() -> None:
    generator = np.random.default_rng(1)
    weight = generator.integers(-MAX_WEIGHT, MAX_WEIGHT + 1, size=(64, 8)).astype(np.int8)
    rows = generator.integers(0, 256, size=(7, 64)).astype(np.uint8)
    rows[0], weight[:, 0] = 255, MAX_WEIGHT
    inputs = [helper.make_tensor_value_info("rows", TensorProto.UINT8, ["M", 64])]
    constants = [
        numpy_helper.from_array(weight, "weight"),
        numpy_helper.from_array(np.float32(1), "one"),
        numpy_helper.from_array(np.ones(8, np.float32), "scale"),
        numpy_helper.from_array(np.uint8(ZERO_POINT), "zero"),
    ]
    node = helper.make_node(
        "MatMulIntegerToFloat", ["rows", "weight", "one", "scale", "zero"], ["out"], domain="com.microsoft"
    )
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["M", 8])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "oracle", inputs, outputs, constants), opset_imports=opsets)
    model.ir_version = 8
    (found,) = ort.InferenceSession(model.SerializeToString()).run(None, {"rows": rows})
    assert (found == (rows.astype(np.int64) - ZERO_POINT) @ weight.astype(np.int64)).all()


def test_every_weight_of_an_exported_decoder_stays_within_seven_bits(tmp_path: Path) -> None:
    step, embedding = make_step(tmp_path)
    with torch.no_grad():
        quantize_step(step, embedding, PROMPTS, say=lambda _: None)
    spec = graph_spec(step.arch, file="decoder-int8.onnx", precision="int8")
    export_decoder(step, spec, tmp_path)
    graph = onnx.load(tmp_path / spec.file).graph
    weights = [numpy_helper.to_array(t) for t in graph.initializer if t.data_type == TensorProto.INT8 and t.dims]
    assert len(weights) == 5 * step.arch.num_layers
    assert max(int(np.abs(weight.astype(np.int32)).max()) for weight in weights) <= MAX_WEIGHT
    products = [node for node in graph.node if node.op_type in ("MatMulIntegerToFloat", "DynamicQuantizeLinear")]
    assert {node.op_type for node in products} == {"MatMulIntegerToFloat"}, "one scale per tensor mixes the rows"


def test_a_row_of_zeros_and_a_row_of_outliers_keep_to_themselves() -> None:
    layer = QuantizedLinear(torch.randint(-MAX_WEIGHT, MAX_WEIGHT + 1, (8, 64)), torch.rand(8) + 0.1, None)
    states = torch.randn(4, 64)
    states[1], states[2] = 0.0, 1e6
    together = layer(states)
    assert torch.equal(together[1], torch.zeros(8))
    for row in range(4):
        assert torch.equal(layer(states[row : row + 1])[0], together[row])


def test_activations_use_the_whole_range_and_no_more() -> None:
    unit = torch.eye(3)
    product = IntegerProduct.apply(torch.tensor([[5.0, -5.0, 0.01]]), unit.to(torch.int8), torch.ones(3))
    assert torch.allclose(product, torch.tensor([[5.0, -5.0, 0.0]]))
    assert MAX_ACTIVATION + ZERO_POINT <= 255


def test_carried_errors_beat_plain_rounding_where_inputs_are_correlated() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(500, 16, generator=generator) @ torch.randn(16, 96, generator=generator)
    weight = torch.randn(24, 96, generator=generator)
    integers, scale = round_weight(weight, inputs.T @ inputs)
    assert integers.abs().max() <= MAX_WEIGHT
    assert torch.equal(integers, integers.round())
    plain = search_scale(weight)
    errors = [
        (inputs @ (rounded - weight).T).square().mean()
        for rounded in (integers * scale[:, None], to_integers(weight, plain) * plain)
    ]
    assert errors[0] < 0.3 * errors[1]


def test_the_exact_mean_is_the_softmax_mean_and_forgets_the_order_of_the_keys() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 2, 300, 16, generator=generator)
    scores = 3 * torch.randn(2, 4, 5, 300, generator=generator)
    scores[..., ::3] = torch.finfo(torch.float32).min
    mean = ExactMean(float(values.abs().max()))
    on_grid = mean.prepare(values)
    assert (on_grid - values).abs().max() <= mean.value_step / 2
    assert torch.equal(mean.prepare(on_grid), on_grid)
    found, expected = mean(scores, on_grid), SoftmaxMean()(scores, values)
    assert (found - expected).abs().max() < 0.02
    order = torch.randperm(300, generator=generator)
    assert torch.equal(mean(scores[..., order], on_grid[:, :, order]), found), "to the last bit"
    padded = torch.nn.functional.pad(scores, (37, 200), value=torch.finfo(torch.float32).min)
    shifted = torch.nn.functional.pad(on_grid, (0, 0, 37, 200), value=0.0)
    assert torch.equal(mean(padded, shifted), found), "to the last bit"


def test_the_bound_is_the_largest_error_of_a_margin() -> None:
    fp32 = np.array([[-1.0, -2.0, -3.0], [-1.0, -1.1, -5.0]])
    int8 = fp32 + np.array([[0.1, -0.1, 0.0], [0.0, 0.3, 0.05]])
    assert np.allclose(margin_errors(fp32, int8), [0.2, 0.3])
    bound = summarize("first-token", [(fp32, int8)])
    assert (bound.bound, bound.num_rows, bound.max_labels, bound.labels_differ) == (pytest.approx(0.3), 2, 3, 1)
    assert bound.beyond_share == pytest.approx(1 - 0.05**0.5)


def test_calibration_texts_are_not_what_is_measured_with() -> None:
    texts = {text for sample in calibration_samples(300) for text in sample.texts}
    assert len(texts) > 250
    assert not texts & set(seed_tickets(600))
    rounded = {text for sample in calibration_samples(8) for text in sample.texts}
    measured = {text for sample in calibration_samples(30, skip=8 * 9) for text in sample.texts}
    assert not rounded & measured
