"""The float16 norm: right, and without overflow, for states of any size that float16 holds."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from slm_export.coreml_norms import plain_rms_norm, scaled_rms_norm
from slm_export.onnx_evaluate import Evaluation
from slm_export.onnx_stream import GraphWriter

EPSILON, WIDTH = 1e-6, 896
# Five roundings of relative size 2**-11 stand between the states and their norm.
HALF_TOLERANCE = 5 * 2.0**-11


def evaluate(form, states: np.ndarray) -> tuple[np.ndarray, float]:
    """The norm of float16 states, every result rounded, and the largest value on the way."""
    writer = GraphWriter(TensorProto.FLOAT16)
    form(writer, "states", "normed", EPSILON)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, states.shape) for name in ("states", "normed")]
    constants = [numpy_helper.from_array(c.make(), name) for name, c in writer.constants.items()]
    model = helper.make_model(helper.make_graph(writer.nodes, "norm", values[:1], values[1:], constants))
    largest = [0.0]
    outputs = Evaluation(model, torch.float16).run(
        {"states": states.astype(np.float16)}, lambda _, tensor: largest.append(float(tensor.abs().max()))
    )
    return outputs["normed"], max(largest)


def exact(states: np.ndarray) -> np.ndarray:
    wide = states.astype(np.float16).astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPSILON)


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0, 300.0, 15_000.0])
def test_the_scaled_norm_is_exact_within_float16(size: float) -> None:
    states = np.random.default_rng(0).normal(size=(8, WIDTH)) * size
    normed, largest = evaluate(scaled_rms_norm, states)
    np.testing.assert_allclose(normed, exact(states), rtol=HALF_TOLERANCE, atol=1e-4)
    assert largest <= max(np.abs(states.astype(np.float16)).max(), 8), "nothing grows beyond the states themselves"


def test_one_massive_state_among_small_ones_loses_none_of_them() -> None:
    states = np.random.default_rng(0).normal(size=(8, WIDTH))
    states[:, 62] = 2184.0
    normed, _ = evaluate(scaled_rms_norm, states)
    np.testing.assert_allclose(normed, exact(states), rtol=HALF_TOLERANCE, atol=1e-4)


def test_padding_of_zeros_stays_zero() -> None:
    normed, _ = evaluate(scaled_rms_norm, np.zeros((2, WIDTH)))
    np.testing.assert_array_equal(normed, 0)


def test_the_plain_norm_overflows_to_a_silent_zero() -> None:
    """Why there are two forms."""
    states = np.random.default_rng(0).normal(size=(8, WIDTH))
    states[:, 62] = 2184.0
    normed, largest = evaluate(plain_rms_norm, states)
    assert largest == np.inf
    np.testing.assert_array_equal(normed, 0)
