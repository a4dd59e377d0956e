"""A control variate for traces by probes of covariance P: the derivative of the preconditioner, whose trace is known.

L L^T, from pivots I, is the Nystroem approximation K_nI K_II^-1 K_In of S K S. With B = K_II^-1 K_In (m, n) its
derivative is M = dK_nI B + B^T dK_In - B^T dK_II B. Probes z of covariance P have duals P^-1 z of covariance P^-1, so

    z^T P^-1 dA A^-1 z - c (z^T P^-1 M P^-1 z - tr(P^-1 M))

has the same mean for every c and every fixed M, and a smaller variance for some: if A were P, the first term would be
z^T P^-1 dA P^-1 z, and M is dA as far as the pivots see it. B stays what it was when the preconditioner was made; M is
then no longer the derivative of anything, but as fixed as before.

The kernel's part of it and the noise's may have different c (`rtgp._objectives.control_coefficients`).

It takes the kernel between all points and the pivots, a small part of K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._preconditioners.combined import LowRankAndNeighboursInverse
from rtgp._preconditioners.low_rank import LowRank
from rtgp._solvers import NoiseUnits
from rtgp._state import saved_tensor
from rtgp.distributed import Group
from rtgp.operators._protocol import attach_gradients, tiles

WithLowRank = LowRank | LowRankAndNeighboursInverse

_ENTRIES, _ENTRIES_ON_CARD = 2**22, 2**24  # of K at once: few, large pieces where every launch costs


@dataclass(frozen=True)
class ControlSettings:
    """How much of a Nystroem control is taken before a run has shown anything.

    Attributes
    ----------
    low_rank : float
        With a low rank alone. Where P is good the best part was .46 to .67 on pol, kin40k, elevators and protein (2000
        points each), and the variance is flat around it.
    both : float
        With a low rank and neighbours. All of it was never worse than none, on eight pairs of set and kernel.
    largest_trace : float
        The largest trace of S K S with which it is used; beyond, rounding may have made M something else. On bike (n =
        2000, float64) the variance with one half of it was a third of that without up to a trace of 7e9, three times as
        large at 4e10, and grew with its square from there on. A synthetic kernel of one scale was served up to 5e12.
    """

    low_rank: float = 0.5
    both: float = 1.0
    largest_trace: float = 1e10


DEFAULT = ControlSettings()


class NystroemControl:
    """M for one preconditioner with a low-rank part.

    basis W (n, k) float64, or this rank's rows of it, and b (m, k) float64 with B = b W^T; pivots (m,).
    """

    def __init__(self, preconditioner: WithLowRank, pivots: Tensor, b: Tensor, dtype: torch.dtype) -> None:
        self.preconditioner, self.pivots, self.b = preconditioner, pivots, b.contiguous()
        self.basis, solved = _basis_and_solved(preconditioner)
        self._group = preconditioner.group if isinstance(preconditioner, LowRank) else Group.alone()
        self._own = self._group.own(preconditioner.size)
        # P^-1 B^T, (n, m), or this rank's rows: the one large part, in the working precision
        cross = solved @ self.b.T
        self._core = self.b @ self._group.sum(self.basis.T @ cross)  # B P^-1 B^T, (m, m)
        self._cross = cross.to(dtype)
        self._diagonal = preconditioner.inverse_diagonal()  # of P^-1, (n,)

    @staticmethod
    def first_guess(system: NoiseUnits, with_neighbours: bool, settings: ControlSettings = DEFAULT) -> float:
        """Of c: 0 where rounding may have made M something else. B has digits as the trace of S K S allows, and M is a
        difference of terms of its size."""
        if float(system.kernel_diagonal().sum()) > settings.largest_trace:
            return 0.0
        return settings.both if with_neighbours else settings.low_rank

    @classmethod
    def of(cls, preconditioner: WithLowRank, factor: Tensor, pivots: Tensor, dtype: torch.dtype) -> NystroemControl:
        """From L (n, k) and the m >= k pivots it was made from: with K_nI = L L_I^T, B = L_I (L_I^T L_I)^-1 L^T."""
        group = preconditioner.group if isinstance(preconditioner, LowRank) else Group.alone()
        at_pivots = group.take(factor, pivots, preconditioner.size)  # L_I, (m, k)
        # An error in B changes M, which may be anything fixed: the normal equations will do.
        gram = at_pivots.T @ at_pivots
        gram.diagonal().mul_(1.0 + 1e-12)
        t = torch.cholesky_solve(at_pivots.T, torch.linalg.cholesky(gram)).T
        if isinstance(preconditioner, LowRank):
            t = t @ group.sum(factor.T @ preconditioner.basis)
        return cls(preconditioner, pivots, t, dtype)

    def state_dict(self) -> dict[str, Tensor]:
        return {"control_pivots": self.pivots, "control_b": self.b}

    @classmethod
    def from_state_dict(
        cls, preconditioner: WithLowRank, state: Mapping[str, Any], dtype: torch.dtype
    ) -> NystroemControl:
        n = preconditioner.size
        pivots = saved_tensor(state, "control_pivots", (None,), torch.int64, (0, n - 1))
        if len(set(pivots.tolist())) != len(pivots):
            raise ValueError("'control_pivots' must be different points. Got some twice.")
        return cls(preconditioner, pivots, saved_tensor(state, "control_b", (len(pivots), preconditioner.rank)), dtype)

    def losses(
        self, system: NoiseUnits, duals: Tensor, squares: Tensor, weights: Tensor, form: KernelForm, noise: Tensor
    ) -> Tensor:
        weights = weights.double()
        group, own = self._group, self._own
        seen = self.b @ group.sum(self.basis.T @ duals[own].double())  # B u, (m, p)
        total = float(weights.sum())
        # On K_nI: twice the difference of z^T P^-1 B^T and its mean; that on K_II is taken from the pivots' rows.
        cross = duals[own] @ (seen * weights).T.to(duals.dtype)
        if total != 0.0:
            cross.add_(self._cross, alpha=-total)
        here, place = group.among_own(self.pivots, system.size)
        cross[place] -= (0.5 * ((seen * weights) @ seen.T - total * self._core)).to(cross.dtype)[here]
        scale = system.noise.rsqrt().to(cross.dtype)
        cross *= scale[own, None]
        cross *= 2.0 * scale[self.pivots]
        by_noise = (duals.double().square() @ weights - total * self._diagonal) / system.noise
        kernel = contract_columns(form, self.pivots, cross, group)
        variances = noise.expand(form.size)
        return torch.stack([kernel, (variances * by_noise.to(variances.dtype)).sum().to(kernel.dtype)])


def _basis_and_solved(preconditioner: WithLowRank) -> tuple[Tensor, Tensor]:
    """W and P^-1 W: of the low rank its orthonormal columns, of both together the columns of L."""
    if isinstance(preconditioner, LowRank):
        inverse = preconditioner.core_inverse
        return preconditioner.basis, preconditioner.basis @ (inverse.T @ inverse)
    return preconditioner.factor, preconditioner.solve(preconditioner.factor)[0]


def contract_columns(form: KernelForm, index: Tensor, weight: Tensor, group: Group) -> Tensor:
    """sum_ij W_ij K[i, index_j] for W (n, m), as a float64 scalar, differentiable like an operator's `bilinear`; of
    many ranks, each gives its own rows of W."""
    own = group.own(form.size)
    total = torch.zeros((), dtype=torch.float64, device=form.device)
    gradients = form.zero_gradients()
    differentiable = any(tensor.requires_grad for tensor in form.tensors)
    entries = _ENTRIES_ON_CARD if form.device.type == "cuda" else _ENTRIES
    for rows in tiles(own, max(1, entries // max(1, len(index)))):
        block, part = form.block(rows, index), weight[rows.start - own.start : rows.stop - own.start].to(form.dtype)
        total += torch.sum(part * block, dtype=torch.float64)
        if differentiable:
            form.pullback(rows, index, part, gradients, block)
    total, *gradients = group.sum_all([total, *gradients])
    return attach_gradients(total, form.tensors, gradients)
