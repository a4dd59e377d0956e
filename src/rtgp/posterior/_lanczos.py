"""Variances from one Lanczos decomposition of A, n k numbers for all test points (Pleiss et al., 2018).

Q (n, k) with orthonormal columns and T = Q^T A Q give Q T^-1 Q^T <= A^-1. So the explained variance is never too large:
**the variance is never underestimated**, and what is missing shrinks as the rank grows, to nothing at rank n. A rank
is too small where it is below the number of eigenvalues of S K S that are well above one: points close to the data,
whose variance is a small part of the prior's, are then too uncertain by a large factor.
`PosteriorReport.variance_error` says by how much at some training points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._solvers import NoiseUnits
from rtgp.posterior._solver import Quadratic


@dataclass(frozen=True)
class LanczosSettings:
    """How fast variances are made.

    Attributes
    ----------
    rank : int
        The default number of vectors, which is GPyTorch's own.
    breakdown, breakdown_in_float64 : float
        Part of |A q| below which what is left is rounding: the Krylov space is exhausted.
    """

    rank: int = 100
    breakdown: float = 1e-5
    breakdown_in_float64: float = 1e-11


DEFAULT = LanczosSettings()


class LanczosSolver:
    """W = Q T^-1/2, stored: A^-1 is approximated by W W^T."""

    def __init__(
        self, system: NoiseUnits, rank: int, generator: torch.Generator, settings: LanczosSettings = DEFAULT
    ) -> None:
        rank = min(rank, system.size)
        basis, diagonal, offdiagonal = lanczos(system, rank, generator, settings)
        tridiagonal = torch.diag(diagonal) + torch.diag(offdiagonal, 1) + torch.diag(offdiagonal, -1)
        eigenvalues, vectors = torch.linalg.eigh(tridiagonal)  # all at least 1: A >= I
        self._root = basis @ (vectors * eigenvalues.clamp_min(1.0).rsqrt()).to(basis.dtype)  # (n, k)
        self.rank = rank

    def explained(self, b: Tensor, prior: Tensor) -> Tensor:
        half = self._half(b)
        return half.square().sum(0, dtype=torch.float64)

    def gram(self, b: Tensor, prior: Tensor) -> Tensor:
        half = self._half(b)
        return half.T @ half

    def quadratic(self, b: Tensor, prior: Tensor, fine: bool) -> Quadratic:
        half = self._half(b)
        return Quadratic(self._root @ half, half.square().sum(0, dtype=torch.float64), None)

    def _half(self, b: Tensor) -> Tensor:
        half: Tensor = self._root.T @ b  # (k, m)
        return half


def lanczos(
    system: NoiseUnits, rank: int, generator: torch.Generator, settings: LanczosSettings = DEFAULT
) -> tuple[Tensor, Tensor, Tensor]:
    """Q (n, k), the diagonal (k,) and the off-diagonal (k - 1,) of T, with full reorthogonalisation."""
    n = system.size
    breakdown = settings.breakdown_in_float64 if system.dtype == torch.float64 else settings.breakdown

    def drawn() -> Tensor:
        return torch.randn(n, 1, generator=generator, dtype=torch.float64).to(system.device, system.dtype)

    basis = torch.zeros(n, rank, dtype=system.dtype, device=system.device)
    diagonal = torch.zeros(rank, dtype=torch.float64, device=system.device)
    offdiagonal = torch.zeros(rank - 1, dtype=torch.float64, device=system.device)
    start = drawn()
    vector = system.matmul(start) - start  # S K S g: the directions that the data explain most
    if not float(vector.norm()) > 0.0:
        vector = start
    for j in range(rank):
        basis[:, j] = (vector / vector.norm())[:, 0]
        vector = system.matmul(basis[:, j : j + 1])
        size = float(vector.norm())
        diagonal[j] = (basis[:, j].double() * vector[:, 0].double()).sum()
        if j + 1 == rank:
            break
        vector = _orthogonal(vector, basis[:, : j + 1])
        if float(vector.norm()) <= breakdown * size:
            vector = _orthogonal(drawn(), basis[:, : j + 1])  # repeated eigenvalues: begin again, uncoupled
        else:
            offdiagonal[j] = vector.double().norm()
    return basis, diagonal, offdiagonal


def _orthogonal(vector: Tensor, basis: Tensor) -> Tensor:
    for _ in range(2):
        vector = vector - basis @ (basis.T @ vector)
    return vector
