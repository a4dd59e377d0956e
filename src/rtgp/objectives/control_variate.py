"""A control variate for traces by probes of covariance P: the derivative of the preconditioner, whose trace is known.

L L^T, from pivots I, is the Nystroem approximation K_nI K_II^-1 K_In of S K S. With B = K_II^-1 K_In (m, n) its
derivative is M = dK_nI B + B^T dK_In - B^T dK_II B. Probes z of covariance P have duals P^-1 z of covariance P^-1, so

    z^T P^-1 dA A^-1 z - c (z^T P^-1 M P^-1 z - tr(P^-1 M))

has the same mean for every c and every fixed M, and a smaller variance for some: if A were P, the first term would be
z^T P^-1 dA P^-1 z, and M is dA as far as the pivots see it. B stays what it was when the preconditioner was made; M is
then no longer the derivative of anything, but as fixed as before.

The kernel's part of it and the noise's may have different c (`control_coefficients`).

It takes the kernel between all points and the pivots, a small part of K.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rtgp.distributed import Group
from rtgp.kernels import KernelForm
from rtgp.objectives.protocol import Batch
from rtgp.operators.protocol import attach_gradients, tiles
from rtgp.solvers import LowRankPlusIdentity, WhitenedSystem
from rtgp.state import saved_scalar, saved_tensor

# Where P is good the best c was .46 to .67 on pol, kin40k, elevators and protein (2000 points each), and the variance
# is flat around it.
COEFFICIENT = 0.5
_LARGEST_TRACE = 1e10  # of S K S: see `first_guess`
_ENTRIES, _ENTRIES_ON_CARD = 2**22, 2**24  # of K at once: few, large pieces where every launch costs


class NystroemControl:
    """M for one preconditioner. pivots (m,); b (m, k) float64 with B = b Q^T, Q the preconditioner's basis."""

    def __init__(
        self,
        preconditioner: LowRankPlusIdentity,
        pivots: Tensor,
        b: Tensor,
        dtype: torch.dtype,
        guess: float = COEFFICIENT,  # of c, before anything is known
    ) -> None:
        self.preconditioner, self.pivots, self.b, self.guess = preconditioner, pivots, b.contiguous(), guess
        half = preconditioner.core_inverse @ self.b.T  # C^-1 b^T, (k, m)
        self._core = half.T @ half  # B P^-1 B^T, (m, m)
        # P^-1 B^T, (n, m), or this rank's rows: the one large part, in the working precision
        self._cross = (preconditioner.basis @ (preconditioner.core_inverse.T @ half)).to(dtype)
        self._diagonal = preconditioner.inverse_diagonal()  # of P^-1, (n,)

    @staticmethod
    def first_guess(system: WhitenedSystem) -> float:
        """Of c: 0 where rounding may have made M something else. B has digits as the trace of S K S allows, and M is a
        difference of terms of its size: on bike (n = 2000, float64) the variance with one half of it was a third of
        that without up to a trace of 7e9, three times as large at 4e10, and grew with its square from there on. A
        synthetic kernel of one scale was served up to 5e12, and a rough one is: the bound is the one that real data
        asked for."""
        return COEFFICIENT if float(system.kernel_diagonal().sum()) <= _LARGEST_TRACE else 0.0

    @classmethod
    def of(
        cls,
        preconditioner: LowRankPlusIdentity,
        factor: Tensor,
        pivots: Tensor,
        dtype: torch.dtype,
        guess: float = COEFFICIENT,
    ) -> NystroemControl:
        """From L (n, k) and the m >= k pivots it was made from: with K_nI = L L_I^T, B = L_I (L_I^T L_I)^-1 L^T."""
        group = preconditioner.group
        at_pivots = group.take(factor, pivots, preconditioner.size)  # L_I, (m, k)
        # An error in B changes M, which may be anything fixed: the normal equations will do.
        gram = at_pivots.T @ at_pivots
        gram.diagonal().mul_(1.0 + 1e-12)
        t = torch.cholesky_solve(at_pivots.T, torch.linalg.cholesky(gram)).T
        return cls(preconditioner, pivots, t @ group.sum(factor.T @ preconditioner.basis), dtype, guess)

    def state_dict(self) -> dict[str, Tensor]:
        guess = torch.tensor(self.guess, dtype=torch.float64)
        return {"control_pivots": self.pivots, "control_b": self.b, "control_guess": guess}

    @classmethod
    def from_state_dict(
        cls, preconditioner: LowRankPlusIdentity, state: Mapping[str, Any], dtype: torch.dtype
    ) -> NystroemControl:
        state = {"control_guess": torch.tensor(COEFFICIENT, dtype=torch.float64), **state}  # older versions
        n = preconditioner.size
        pivots = saved_tensor(state, "control_pivots", (None,), torch.int64, (0, n - 1))
        if len(set(pivots.tolist())) != len(pivots):
            raise ValueError("'control_pivots' must be different points. Got some twice.")
        b = saved_tensor(state, "control_b", (len(pivots), preconditioner.rank))
        return cls(preconditioner, pivots, b, dtype, saved_scalar(state, "control_guess", (0.0, 1.0)))

    def losses(self, system: WhitenedSystem, duals: Tensor, weights: Tensor, batch: Batch) -> Tensor:
        """(2,): the gradient of the first is sum_p w_p (z_p^T P^-1 M P^-1 z_p - tr(P^-1 M)), that of the second the
        same for the noise.

        duals (n, p): P^-1 z; weights w (p,).
        """
        weights = weights.double()
        group, own = self.preconditioner.group, self.preconditioner.own
        seen = self.b @ group.sum(self.preconditioner.basis.T @ duals[own].double())  # B P^-1 z, (m, p)
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
        noise = (duals.double().square() @ weights - total * self._diagonal) / system.noise
        kernel = contract_columns(batch.form, self.pivots, cross, group)
        variances = batch.noise.expand(batch.form.size)
        return torch.stack([kernel, (variances * noise.to(variances.dtype)).sum().to(kernel.dtype)])


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
