"""Stored rows come back as the float32 values they were."""

from pathlib import Path

import numpy as np
import pytest

from slm_runtime.errors import FormatError
from slm_runtime.manifest import MatrixSpec
from slm_runtime.matrix import Matrix

VALUES = np.array([[1.0, -0.5], [3.140625, 2.0**-120], [0.0, 65280.0]], np.float32)


def stored(dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (VALUES.view(np.uint32) >> 16).astype(np.uint16)
    return VALUES.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_and_chunks_are_the_stored_values(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "m.npy", stored(dtype))
    matrix = Matrix(tmp_path, MatrixSpec("m.npy", dtype))
    assert matrix.shape == (3, 2)
    np.testing.assert_array_equal(matrix.rows([[2, 0]]), VALUES[[[2, 0]]])
    chunks = list(matrix.chunks(2))
    assert [len(chunk) for chunk in chunks] == [2, 1]
    np.testing.assert_array_equal(np.concatenate(chunks), VALUES)
    assert {chunk.dtype for chunk in chunks} == {np.dtype(np.float32)}


def test_a_matrix_of_another_type_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", VALUES)
    with pytest.raises(FormatError, match="holds float32 of rank 2, expected uint16"):
        Matrix(tmp_path, MatrixSpec("m.npy", "bfloat16"))


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(FormatError, match="cannot be read"):
        Matrix(tmp_path, MatrixSpec("m.npy", "float32"))
