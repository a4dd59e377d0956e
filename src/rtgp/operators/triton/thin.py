"""Products with a tall, thin matrix on a card. Needs Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.operators.triton.stored import aligned, stored_product

_LARGE = 64  # rank from which the fused product pays


def thin_product(matrix: Tensor, v: Tensor) -> Tensor:
    """matrix @ v for a matrix as `prepared`, whose columns or rows have a length of at most 1. Matrix libraries are
    made for square products: with 12 columns they do five times the work."""
    if _fused(matrix):
        return stored_product(matrix, v, 1.0)
    return matrix @ v


def prepared(matrix: Tensor) -> Tensor:
    """As `thin_product` takes it."""
    return aligned(matrix) if _fused(matrix) else matrix


def _fused(matrix: Tensor) -> bool:
    return matrix.dtype == torch.float32 and min(matrix.shape) >= _LARGE
