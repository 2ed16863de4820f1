"""Float weights to integers: scales by search, rounding errors carried on to the columns not yet rounded (GPTQ).

Method: arXiv 2210.17323. The columns of a layer's input are correlated, so what one column's rounding adds to the
output the later columns can take back.
"""

import torch
from torch import Tensor

from slm_export.int8.linear import MAX_WEIGHT

# The share of the largest weight at which a row is cut, tried one by one.
CLIP_SHARES = torch.linspace(0.7, 1.0, 13)
DAMPING = 0.01
MIN_DAMPING = 1e-12
BLOCK_COLUMNS = 64


def search_scale(weight: Tensor) -> Tensor:
    """One scale per row of `weight` [N, K], shape [N, 1], with the least squared rounding error."""
    largest = weight.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    best, best_error = largest / MAX_WEIGHT, torch.full_like(largest, torch.inf)
    for share in CLIP_SHARES:
        scale = largest * share / MAX_WEIGHT
        error = (to_integers(weight, scale) * scale - weight).square().sum(1, keepdim=True)
        best = torch.where(error < best_error, scale, best)
        best_error = torch.minimum(error, best_error)
    return best


def to_integers(weight: Tensor, scale: Tensor) -> Tensor:
    """`weight` in multiples of `scale`, rounded and cut to MAX_WEIGHT; the two broadcast."""
    return (weight / scale).round().clamp(-MAX_WEIGHT, MAX_WEIGHT)


def round_weight(weight: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Integers [N, K] and scales [N] for `weight` [N, K], given the sum of x x^T over its inputs x, `gram` [K, K]."""
    scale = search_scale(weight)[:, 0]
    order = torch.argsort(gram.diagonal(), descending=True)
    carry = _carry(gram[order][:, order])
    remaining = weight.T[order].contiguous()  # a column of the weight is a row here: it lies together in memory
    rounded = torch.empty_like(remaining)
    for start in range(0, len(order), BLOCK_COLUMNS):
        stop = min(start + BLOCK_COLUMNS, len(order))
        block, errors = remaining[start:stop], torch.empty_like(remaining[start:stop])
        for i, spread in enumerate(carry[start:stop, start:stop]):
            rounded[start + i] = to_integers(block[i], scale)
            errors[i] = (block[i] - rounded[start + i] * scale) / spread[i]
            block[i + 1 :] -= spread[i + 1 :, None] * errors[i]
        remaining[stop:] -= carry[start:stop, stop:].T @ errors
    restored = torch.empty_like(weight)
    restored[:, order] = rounded.T
    return restored, scale


def _carry(gram: Tensor) -> Tensor:
    """Upper triangular, [K, K]: how the error of one column spreads to the later ones.

    It is the Cholesky factor of the inverse of the damped `gram`, from a factor of `gram` itself in reverse order.
    """
    size = len(gram)
    damped = gram + torch.eye(size) * (DAMPING * gram.diagonal().mean()).clamp(min=MIN_DAMPING)
    reverse = torch.linalg.cholesky(damped.flip(0, 1)).flip(0, 1)
    return torch.linalg.solve_triangular(reverse, torch.eye(size), upper=True)
