"""The embedding and head matrices [V, D]: memory-mapped, rows widened to float32 only when they are read."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slm_runtime.errors import FormatError
from slm_runtime.manifest import MatrixSpec


class Matrix:
    """A [V, D] matrix on disk. Nothing is read until rows are asked for."""

    def __init__(self, folder: Path, spec: MatrixSpec) -> None:
        path = folder / spec.file
        try:
            self._rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: cannot be read as a matrix ({error}); export the bundle again") from error
        stored = "uint16" if spec.dtype == "bfloat16" else spec.dtype
        if self._rows.ndim != 2 or self._rows.dtype != stored:
            raise FormatError(
                f"{path}: holds {self._rows.dtype} of rank {self._rows.ndim}, expected {stored} of rank 2; "
                "export the bundle again"
            )
        self._is_bfloat16 = spec.dtype == "bfloat16"

    @property
    def shape(self) -> tuple[int, int]:
        """(V, D)"""
        return self._rows.shape

    def rows(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Rows `ids` as float32, shape [*ids.shape, D]; a copy."""
        return self._widen(self._rows[np.asarray(ids)])

    def chunks(self, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """All rows in order, `num_rows` at a time; a view of the file where it holds float32."""
        for start in range(0, self.shape[0], num_rows):
            yield self._widen(self._rows[start : start + num_rows])

    def _widen(self, rows: NDArray[np.generic]) -> NDArray[np.float32]:
        if self._is_bfloat16:
            return (rows.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(rows, dtype=np.float32)
