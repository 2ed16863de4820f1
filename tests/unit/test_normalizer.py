"""The full-vocabulary log-normaliser against float64, and what it may not depend on."""

from pathlib import Path

import numpy as np
import pytest

from slm_export.onnx_export import write_normalizer
from slm_runtime.manifest import MatrixSpec, NormalizerSpec
from slm_runtime.matrix import Matrix
from slm_runtime.session import NORMALIZER_CHUNK_ROWS, Normalizer

WIDTH = 64
# One chunk whose rows begin at odd addresses; two chunks, the second of a single row.
VOCABULARIES = [1003, NORMALIZER_CHUNK_ROWS + 1]


@pytest.fixture(params=VOCABULARIES)
def head(request: pytest.FixtureRequest, tmp_path: Path) -> np.ndarray:
    rows = np.random.default_rng(1).normal(size=(request.param, WIDTH)).astype(np.float32)
    np.save(tmp_path / "head.npy", rows)
    return rows


@pytest.fixture
def normalizer(head: np.ndarray, tmp_path: Path) -> Normalizer:
    spec = NormalizerSpec("normalizer.onnx")
    write_normalizer(spec, tmp_path)
    return Normalizer(tmp_path, spec, Matrix(tmp_path, MatrixSpec("head.npy", "float32")), num_threads=2)


def test_it_is_the_log_of_the_sum_of_exponentials(normalizer: Normalizer, head: np.ndarray) -> None:
    hidden = np.random.default_rng(2).normal(size=(5, WIDTH)).astype(np.float32)
    logits = hidden.astype(np.float64) @ head.astype(np.float64).T
    assert normalizer.log_norm(hidden) == pytest.approx(np.log(np.exp(logits).sum(axis=1)), abs=1e-5)


def test_c03_a_row_s_normaliser_is_its_own_to_the_last_bit(normalizer: Normalizer) -> None:
    hidden = np.random.default_rng(3).normal(size=(100, WIDTH)).astype(np.float32)
    alone = np.concatenate([normalizer.log_norm(row[None]) for row in hidden])
    for size in (2, 3, 7, 64, 100):
        parts = [normalizer.log_norm(hidden[start : start + size]) for start in range(0, 100, size)]
        assert np.array_equal(np.concatenate(parts), alone), size
