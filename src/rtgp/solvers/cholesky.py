"""Cholesky factorisation of a whitened system: the reference every other method is measured against."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.errors import NotPositiveDefiniteError
from rtgp.solvers.system import WhitenedSystem


def assemble(system: WhitenedSystem, tile: int = 1024) -> Tensor:
    """A = S K S + I as a matrix, (n, n)."""
    n = system.size
    matrix = torch.empty(n, n, dtype=system.dtype, device=system.device)
    s = system.noise.rsqrt().to(system.dtype)
    for start in range(0, n, tile):
        index = torch.arange(start, min(start + tile, n), device=system.device)
        matrix[start : start + tile] = system.operator.rows(index).mul_(s).mul_(s[index, None])
    matrix.diagonal().add_(1.0)
    return matrix


def cholesky_factor(matrix: Tensor) -> Tensor:
    """The lower factor; an error with a remedy where there is none."""
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) != 0 or not bool(torch.isfinite(factor.diagonal()).all()):
        trace = float(matrix.diagonal().double().sum())
        jitter = torch.finfo(matrix.dtype).eps * trace
        raise NotPositiveDefiniteError(
            f"The covariance matrix is not positive definite in {matrix.dtype}: Cholesky failed at row {int(info)} of "
            f"{matrix.shape[0]}. In units of the noise, a jitter of about {jitter:.1e} would help: multiply the noise "
            f"variance by {1 + jitter:.3g} (raise its lower bound), or use float64."
        )
    return factor
