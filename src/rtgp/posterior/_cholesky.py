"""Predictions from the Cholesky factor of A: n^3 / 3 operations once, n^2 for each test point."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp._solvers import NoiseUnits
from rtgp._solvers.cholesky import assemble, cholesky_factor
from rtgp.posterior._solver import Quadratic, Solution


class CholeskySolver:
    """A = L L^T, stored."""

    name = "cholesky"
    rank = 0
    error = 0.0  # of a variance: rounding only

    def __init__(self, system: NoiseUnits) -> None:
        self._system = system
        self._factor = cholesky_factor(assemble(system))

    def solve(self, rhs: Tensor, start: Tensor | None = None) -> Solution:
        x = torch.cholesky_solve(rhs, self._factor)
        left = (rhs - self._system.matmul(x)).double().norm(dim=0)
        ratio = left / rhs.double().norm(dim=0).clamp_min(1e-300)
        return Solution(x, 0, float(ratio.max()))

    def explained(self, b: Tensor, prior: Tensor) -> Tensor:
        return self._half(b).square().sum(0, dtype=torch.float64)

    def gram(self, b: Tensor, prior: Tensor) -> Tensor:
        half = self._half(b)
        return half.T @ half

    def quadratic(self, b: Tensor, prior: Tensor, fine: bool) -> Quadratic:
        half = self._half(b)
        x = torch.linalg.solve_triangular(self._factor.mT, half, upper=True)
        return Quadratic(x, half.square().sum(0, dtype=torch.float64), None)

    def _half(self, b: Tensor) -> Tensor:
        """L^-1 b"""
        half: Tensor = torch.linalg.solve_triangular(self._factor, b, upper=False)
        return half
