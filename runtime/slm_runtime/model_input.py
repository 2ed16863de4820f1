"""What a call of the decoder gets: tokens, positions, who sees whom, what is scored. Axis letters as in `manifest`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm_runtime.planning import Batch

Int64 = NDArray[np.int64]
# Added to the attention scores of what a token must not see. Far below any score, far above the float32 minimum.
MASKED = np.float32(-1e9)


@dataclass(frozen=True)
class ModelInput:
    """`token_ids` and `position_ids` [B, S], `attention_bias` [B, 1, S, P + S], `score_index` [N] into B * S."""

    token_ids: Int64
    position_ids: Int64
    attention_bias: NDArray[np.float32]
    score_index: Int64


def batch_input(batch: Batch, past_len: int) -> ModelInput:
    """The input of a batch after `past_len` cached tokens.

    Every token sees the whole past and its ancestors in the row's tree. A padding token sees the past and itself.
    """
    size = batch.length
    shape = (len(batch.rows), size)
    token_ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    ends = np.repeat(np.arange(1, size + 1)[None], len(batch.rows), axis=0)
    for i, row in enumerate(batch.rows):
        token_ids[i, : len(row)] = row.token_ids
        positions[i, : len(row)] = row.depths + past_len
        ends[i, : len(row)] = row.ends
    bias = np.zeros((len(batch.rows), 1, size, past_len + size), np.float32)
    bias[:, 0, :, past_len:][~tree_visibility(ends)] = MASKED
    return ModelInput(token_ids, positions, bias, batch.score_index())


def chain_input(token_ids: Int64, past_len: int) -> ModelInput:
    """The input of one row of consecutive tokens [S] of which only the last is scored."""
    size = len(token_ids)
    bias = np.zeros((1, 1, size, past_len + size), np.float32)
    bias[0, 0, :, past_len:] = np.triu(np.full((size, size), MASKED), 1)
    return ModelInput(token_ids[None], np.arange(past_len, past_len + size)[None], bias, np.array([size - 1]))


def tree_visibility(ends: Int64) -> NDArray[np.bool_]:
    """[..., S, S]: whether token i sees token j, for subtree ends [..., S]."""
    index = np.arange(ends.shape[-1])
    return (index[None, :] <= index[:, None]) & (index[:, None] < ends[..., None, :])
