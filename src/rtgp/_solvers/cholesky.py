"""Cholesky factorisation of a system in units of its noise: the reference every other method is measured against."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp._solvers.system import NoiseUnits
from rtgp.errors import NotPositiveDefiniteError
from rtgp.operators._protocol import tiles


def assemble(system: NoiseUnits, tile: int = 1024) -> Tensor:
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
        otherwise = "" if matrix.dtype == torch.float64 else ", or use float64"
        raise NotPositiveDefiniteError(
            f"The covariance matrix is not positive definite in {matrix.dtype}: Cholesky failed at row {int(info)} of "
            f"{matrix.shape[0]}. In units of the noise, a jitter of about {jitter:.1e} would help: multiply the noise "
            f"variance by {1 + max(jitter, 0.01):.3g} (raise its lower bound){otherwise}."
        )
    return factor


def invert_in_place(factor: Tensor, panel: int) -> Tensor:
    """A^-1 from its lower factor L, in the memory of L: its square blocks of `panel` rows on and below
    the diagonal; the others mean nothing.

    L^-1 by panels of columns, then L^-T L^-1 by panels of rows: n^3 / 3 operations each, in large products alone, and a
    panel of further memory. torch.cholesky_inverse takes 2 n^3 and a second matrix on a card.
    """
    n = factor.shape[0]
    panels = tiles(slice(0, n), panel)
    for columns in panels:
        start = columns.start
        identity = torch.eye(n - start, columns.stop - start, dtype=factor.dtype, device=factor.device)
        factor[start:, columns] = torch.linalg.solve_triangular(factor[start:, start:], identity, upper=False)
    for rows in panels:
        below = factor[rows.start :, rows]  # (n - start, panel) of L^-1
        factor[rows, : rows.stop] = below.T @ factor[rows.start :, : rows.stop]
    return factor
