"""The control variate that comes with a sparse inverse factor at no further cost.

P^-1 = G^T G has tr(P^-1 dA) = sum_i g_i^T dA[c_i, c_i] g_i, g_i the entries of row i of G at its points c_i: exact,
from small blocks, for every hyperparameter. So M = dA itself, and its quadratic u^T dA u is the trace term's own
bilinear form with another right factor.

u^T A u = e^T B e is known after the first iteration, and its mean tr(P^-1 A) by the same blocks. What scatters with it
in all hyperparameters alike is taken out too:

    u^T dA u - (tr(P^-1 dA) / tr(P^-1 A)) u^T A u    has mean zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._preconditioners.sparse_factor import trace_of_derivative
from rtgp._preconditioners.sparse_inverse import SparseInverse
from rtgp._solvers import NoiseUnits


class NeighbourControl:
    """M = dA for one sparse inverse factor, which may be stale."""

    def __init__(self, preconditioner: SparseInverse) -> None:
        self._preconditioner = preconditioner
        self._known: tuple[KernelForm, Tensor, Tensor] | None = None  # form and noise seen last, and their means

    def centre(self, squares: Tensor, weights: Tensor, form: KernelForm, noise: Tensor) -> Tensor:
        """(2,): sum_p w_p u_p^T A u_p tr(P^-1 dA) / tr(P^-1 A), for the kernel and for the noise."""
        mean = self._mean(form, noise)
        total = float(mean.detach().sum())  # tr(P^-1 A): the trace is linear in K and in the noise
        return mean * (float(squares.double().cpu() @ weights.double().cpu()) / total)

    def losses(
        self, system: NoiseUnits, duals: Tensor, squares: Tensor, weights: Tensor, form: KernelForm, noise: Tensor
    ) -> Tensor:
        u = system.scaled(duals)
        kernel = system.operator.bilinear(u * weights.to(u), u)
        by_noise = (u.double().square() * weights.double()).sum(1)
        parts = torch.stack([kernel, (noise.expand(form.size) * by_noise.to(noise.dtype)).sum().to(kernel.dtype)])
        return parts - self.centre(squares, weights, form, noise).to(parts)

    def _mean(self, form: KernelForm, noise: Tensor) -> Tensor:
        """(2,) float64: tr(P^-1 S K S) and tr(P^-1 S D S), S held fixed, differentiable."""
        if self._known is None or self._known[0] is not form or self._known[1] is not noise:
            parts = trace_of_derivative(form, noise, self._preconditioner.index, self._preconditioner.values)
            self._known = form, noise, torch.stack(list(parts))
        return self._known[2]

    def __getstate__(self) -> dict[str, Any]:
        """For copies: what is known has an autograd history, which cannot be copied."""
        return {**self.__dict__, "_known": None}

    def state_dict(self) -> dict[str, Tensor]:
        return {"control_of_neighbours": torch.ones((), dtype=torch.int64)}
