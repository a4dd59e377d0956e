"""How far the hyperparameters have left a preconditioner behind, seen on some points."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rtgp._preconditioners.protocol import Preconditioner
from rtgp._preconditioners.sparse_inverse import SparseInverse
from rtgp._solvers import NoiseUnits


def sample_of(system: NoiseUnits) -> Tensor:
    """The kernel on some points, in units of the noise, scaled so that its spectrum resembles that on all of them."""
    index = system.sample_index()
    return system.kernel_rows(index, index).cpu() * (system.size / len(index))


def distortion_between(before: Tensor, after: Tensor) -> float:
    """The condition number of (before + I)^-1 (after + I)."""
    identity = torch.eye(before.shape[0], dtype=before.dtype)
    lower, info = torch.linalg.cholesky_ex(before + identity)
    if int(info) != 0:
        return math.inf
    half = torch.linalg.solve_triangular(lower, after + identity, upper=False)
    eigenvalues = torch.linalg.eigvalsh(torch.linalg.solve_triangular(lower, half.T, upper=False))
    least = float(eigenvalues[0])
    return math.inf if least <= 0.0 else float(eigenvalues[-1]) / least


def imbalance(preconditioner: Preconditioner, system: NoiseUnits) -> float:
    """How far the diagonal of G A G^T is from a multiple of ones, over some rows; 1 for the A that G was made for.

    The sample of `distortion_between` sees points far from one another. It sees nothing of a short lengthscale.
    """
    if not isinstance(preconditioner, SparseInverse):
        return 1.0
    rows = system.sample_index()
    index, values = preconditioner.index[rows], preconditioner.values[rows]
    scale = system.noise.rsqrt()[index]  # (b, m + 1)
    weighted = values * scale
    blocks = system.operator.form.gathered(index).double()
    diagonal = torch.einsum("bi,bij,bj->b", weighted, blocks, weighted) + values.square().sum(1)
    least = float(diagonal.min())
    return math.inf if least <= 0.0 else float(diagonal.max()) / least
