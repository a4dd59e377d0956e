"""Predictions from inducing points: what GPyTorch's VariationalStrategy computes, in float64 and without its caches.

With A = L^-1 K(Z, x), L L^T = K(Z, Z) + jitter I, and v ~ N(m, R R^T):

    mean(x) + A^T m,    k(x, x) - A^T A + (R^T A)^T (R^T A).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm, read_kernel
from rtgp._ownership import without_cycles
from rtgp._solvers.cholesky import cholesky_factor
from rtgp.posterior import _sampling as sampling
from rtgp.posterior._marginal import MarginalPosterior

_BYTES = 128 * 2**20  # of K(Z, x) and of each of the arrays made from it


class VariationalPosterior(MarginalPosterior):
    """Predictions of a `VariationalModel`. Each call computes everything that depends on the model: O(m^3)."""

    def release(self) -> None:
        """Nothing is held."""

    def _reference(self) -> Tensor:
        points: Tensor = self.model.inducing_points
        return points

    def _marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = _Wide(self.model)
        pieces = [wide.at(piece) for piece in torch.split(x, max(1, _BYTES // (8 * wide.size)))]
        return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])

    def _joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = _Wide(self.model)
        sampling.check_moderate(wide.size, x.shape[0])
        return wide.jointly(x)


class _Wide:
    """The model in float64, with the factor of K(Z, Z)."""

    def __init__(self, model: Any) -> None:
        mean, kernel = copy.deepcopy((model.mean_module, model.covar_module))
        self._mean, self._z = without_cycles(mean.double().eval()), model.inducing_points.detach().double()
        self._m, self._root = model.whitened_mean.detach().double(), model.whitened_root.detach().double()
        self._form = read_kernel(without_cycles(kernel.double().eval()), self._z)
        self._inducing = slice(0, len(self._z))
        covariance = self._form.block(self._inducing, self._inducing)
        covariance.diagonal().add_(model.jitter)
        self._factor = cholesky_factor(covariance)
        self.size = len(self._z)

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, form = x.double(), self._form.extended(x.double())
        a = self._half(form)
        explained = a.square().sum(0) - (self._root.T @ a).square().sum(0)
        return self._mean(x) + a.T @ self._m, form.diagonal()[self.size :] - explained

    def jointly(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, form = x.double(), self._form.extended(x.double())
        a = self._half(form)
        b = self._root.T @ a
        new = slice(self.size, form.size)
        covariance = form.block(new, new) - a.T @ a + b.T @ b
        return self._mean(x) + a.T @ self._m, (covariance + covariance.T) / 2

    def _half(self, joint: KernelForm) -> Tensor:
        """A, (m, points), from the form of the inducing points followed by the new ones."""
        cross = joint.block(self._inducing, slice(self.size, joint.size))
        a: Tensor = torch.linalg.solve_triangular(self._factor, cross, upper=False)
        return a
