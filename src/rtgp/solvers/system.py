"""The linear system of a Gaussian process in units of its noise."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from rtgp.distributed import Group
from rtgp.errors import InputError, PrecisionWarning
from rtgp.kernels import KernelForm
from rtgp.operators import KernelOperator


class WhitenedSystem:
    """A = S K S + I with S = D^(-1/2), D the noise variances: K + D = S^-1 A S^-1.

    One form for equal and for known per-point noise. A is never smaller than the identity, a preconditioner needs no
    noise of its own, and y^T (K + D)^-1 y / n is of order one, so that residuals mean the same on every data set.
    """

    def __init__(self, operator: KernelOperator, noise: Tensor) -> None:
        self.operator = operator
        self.size, self.dtype, self.device = operator.shape[0], operator.dtype, operator.device
        # The ranks over which what has n rows and many columns is spread.
        self.group: Group = getattr(operator, "group", None) or Group.alone()
        self.noise = noise.detach().double().expand(self.size)  # (n,)
        self._whitener = self.noise.rsqrt()[:, None]  # (n, 1), float64
        self._working_whitener = self._whitener.to(self.dtype, copy=True)

    def renew(self, form: KernelForm, noise: Tensor) -> bool:
        """Become the system of another kernel and noise, in the same memory, where the operator can do that."""
        renewed = self.operator.renew(form)
        if renewed:
            self.noise = noise.detach().double().expand(self.size)
            self._whitener.copy_(self.noise.rsqrt()[:, None])
            self._working_whitener.copy_(self._whitener)
        return renewed

    @property
    def chunk(self) -> int | None:
        """Iterations of conjugate gradients between two looks; None: as the device likes it. What ranks exchange cannot
        be recorded for later: one."""
        return 1 if self.group.exchanges else None

    def whiten(self, v: Tensor) -> Tensor:
        """S v for v (n, r), in the dtype of v."""
        return v * self._whitener.to(v.dtype)

    def unwhiten(self, v: Tensor) -> Tensor:
        """S^-1 v for v (n, r), in the dtype of v."""
        return v / self._whitener.to(v.dtype)

    def matmul(self, v: Tensor) -> Tensor:
        """A v, (n, r) -> (n, r)."""
        return self.operator.whitened_matmul(v, self._working_whitener[:, 0])

    def remainder(self, target: Tensor, start: Tensor) -> Tensor:
        """target - A start, (n, r), in their dtype.

        With sums in float64: near a solution the terms of A start cancel to a small fraction of their size, and an
        error e of the sum would add A^-1 e to the solution and e^T A^-1 e, which is never negative, to the quadratic.
        """
        product = self._whitener * self.operator.wide_matmul(self._working_whitener * start)
        return (target.double() - product - start.double()).to(target.dtype)

    def kernel_diagonal(self) -> Tensor:
        """The diagonal of S K S, (n,), float64."""
        return self.operator.diagonal().double() / self.noise

    def kernel_rows(self, index: Tensor) -> Tensor:
        """(S K S)[index, :], (k, n), float64."""
        s = self._whitener[:, 0]
        return self.operator.rows(index).double().mul_(s[index, None]).mul_(s)

    def own_kernel_rows(self, index: Tensor) -> Tensor:
        """(S K S)[index, own], (k, m), float64: the columns that are this rank's."""
        s, own = self._whitener[:, 0], self.group.own(self.size)
        return self.operator.rows(index, own).double().mul_(s[index, None]).mul_(s[own])

    def log_det_noise(self) -> Tensor:
        """log |D| = log |K + D| - log |A|."""
        return self.noise.log().sum()

    def condition_bound(self) -> float:
        """An upper bound of the condition number of A: 1 + trace(S K S), since A >= I."""
        return condition_of(self.kernel_diagonal())

    def rounding(self) -> float:
        """What rounding K to the working precision may add to it, in units of the noise."""
        return rounding_of(self.kernel_diagonal(), self.dtype)


def condition_of(diagonal: Tensor) -> float:
    """`WhitenedSystem.condition_bound` for a kernel matrix in units of the noise, of this diagonal (n,)."""
    return 1.0 + float(diagonal.sum())


def rounding_of(diagonal: Tensor, dtype: torch.dtype) -> float:
    """What rounding a kernel matrix in units of the noise, of this diagonal (n,), to a precision may add to it.

    Independent rounding errors of at most eps/2 in n x n entries make a matrix of norm about eps sqrt(n) / 2 times the
    entries' size, which the smallest eigenvalues, those of the noise, feel first.
    """
    return 0.5 * torch.finfo(dtype).eps * math.sqrt(diagonal.shape[0]) * float(diagonal.mean())


# Up to here float32 gradients were within 1e-3 of float64 ones in every case tried; beyond it that is not sure.
ROUNDING_LIMIT = 0.05
# In float64 the condition number says more: up to here values and gradients were within 4e-4 of those in more digits.
CONDITION_LIMIT = 1e14


def warn_of_rounding(diagonal: Tensor, dtype: torch.dtype, widened: bool = False, factor: float = 1.0) -> bool:
    """Say so where a precision cannot serve a kernel matrix in units of its noise; whether it was said.

    factor: by which its rounding errors exceed independent ones (`rtgp.kernels.likeness`).
    """
    if not bool(torch.isfinite(diagonal).all()):
        raise InputError(
            "Expected a finite kernel matrix. The kernel gives NaN or infinity between a training point and itself: "
            "look at its formula, lower the learning rate, or use float64."
        )
    rounding = factor * rounding_of(diagonal, dtype)
    wide = dtype == torch.float64
    if rounding <= ROUNDING_LIMIT and not (wide and condition_of(diagonal) > CONDITION_LIMIT):
        return False
    remedy = "Gradients may be off. Use float64 (model.double()), or raise the lower bound of the noise"
    if widened:
        remedy = "It is computed in float64 from here on, which takes longer and more memory"
    elif wide:
        remedy = "Gradients may be off. Raise the lower bound of the noise"
    warnings.warn(
        f"{dtype} is too coarse for this system: rounding the kernel matrix amounts to {rounding:.2g} times the noise "
        f"(signal {float(diagonal.mean()):.1e} times the noise, n = {diagonal.shape[0]}). {remedy}.",
        PrecisionWarning,
        stacklevel=2,
    )
    return True
