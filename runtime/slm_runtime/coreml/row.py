"""One row of a model input in the fixed shapes of a graph, and back. Axis letters as in `static_graph`."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slm_runtime.errors import FormatError
from slm_runtime.static_graph import StaticGraphSpec

Float32 = NDArray[np.float32]
Feeds = dict[str, NDArray[Any]]
DTYPES: dict[str, type[np.floating[Any]]] = {"fp32": np.float32, "fp16": np.float16}


class RowShaper:
    """Adds what the graphs of a bundle leave to their caller: rotary angles, padding, masks, the final norm.

    Raises:
        FormatError: a vector of the bundle cannot be read.
    """

    def __init__(self, folder: Path, spec: StaticGraphSpec) -> None:
        self._final_norm = _vector(folder / spec.final_norm, spec.hidden_size)
        self._inverse_frequencies = _vector(folder / spec.inverse_frequencies, spec.head_dim // 2)

    def feeds(
        self,
        spec: StaticGraphSpec,
        embedded: Float32,
        positions: NDArray[np.int64],
        bias: Float32,
        past: tuple[Float32, ...],
    ) -> Feeds:
        """The graph's inputs for a row of s <= S tokens after p <= P past ones.

        `embedded` [s, D], `positions` [s], `bias` [s, p + s] with 0 where a token sees another one, and per layer and
        kind one [1, Hkv, p, Dh] in `past`.
        """
        dtype, size = DTYPES[spec.precision], len(positions)
        angles = np.zeros((spec.num_tokens, spec.head_dim // 2), np.float32)
        angles[:size] = positions[:, None].astype(np.float32) * self._inverse_frequencies
        cos, sin = np.cos(angles) * spec.rope_scaling, np.sin(angles) * spec.rope_scaling
        hidden = np.zeros((spec.num_tokens, spec.hidden_size), np.float32)
        hidden[:size] = embedded
        own = {
            spec.hidden: hidden,
            spec.cos: np.concatenate((cos, cos), axis=1),
            spec.sin: np.concatenate((-sin, sin), axis=1),
            spec.mask: _mask(spec, bias),
        }
        own |= {name: _padded(spec, array) for name, array in zip(spec.past_names(), past, strict=True)}
        with np.errstate(over="ignore"):  # what float16 cannot hold becomes the error of its rows
            return {name: np.ascontiguousarray(array, dtype) for name, array in own.items()}

    def normed(self, spec: StaticGraphSpec, hidden_out: NDArray[Any]) -> Float32:
        """The decoder's hidden states after its final norm, [n, D], for rows [n, D] of `hidden_out`."""
        states = hidden_out.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not a number becomes the error of its rows
            mean_square = np.mean(states * states, axis=-1, keepdims=True)
            return states / np.sqrt(mean_square + np.float32(spec.norm_epsilon)) * self._final_norm


def _vector(path: Path, size: int) -> Float32:
    try:
        vector = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read as a vector ({error}); export the bundle again") from error
    if vector.shape != (size,) or vector.dtype != np.float32:
        raise FormatError(
            f"{path}: holds {vector.dtype} {list(vector.shape)}, expected float32 [{size}]; export the bundle again"
        )
    return vector


def _mask(spec: StaticGraphSpec, bias: Float32) -> Float32:
    """[S, T]: what `bias` hides is hidden, so are columns without a past; a padding token sees the past and itself."""
    size = len(bias)
    past_len = bias.shape[1] - size
    mask = np.full((spec.num_tokens, spec.total_len), spec.masked, np.float32)
    mask[:, :past_len] = 0
    np.fill_diagonal(mask[:, spec.past_len :], 0)
    own = slice(spec.past_len, spec.past_len + size)
    mask[:size, :past_len] = np.where(bias[:, :past_len] < 0, spec.masked, 0)
    mask[:size, own] = np.where(bias[:, past_len:] < 0, spec.masked, 0)
    return mask


def _padded(spec: StaticGraphSpec, past: Float32) -> Float32:
    """[Hkv, P, Dh], zeros after the real tokens."""
    padded = np.zeros((spec.num_kv_heads, spec.past_len, spec.head_dim), np.float32)
    padded[:, : past.shape[2]] = past[0]
    return padded
