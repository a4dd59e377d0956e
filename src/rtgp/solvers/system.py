"""The linear system of a Gaussian process in units of its noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

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

    def kernel_rows(self, index: Tensor, columns: slice | Tensor | None = None) -> Tensor:
        """(S K S)[index, columns], (k, m), float64; all n columns by default."""
        s = self._whitener[:, 0]
        across = s if columns is None else s[columns]
        return self.operator.rows(index, columns).double().mul_(s[index, None]).mul_(across)

    def own_kernel_rows(self, index: Tensor) -> Tensor:
        """(S K S)[index, own], (k, m), float64: the columns that are this rank's."""
        return self.kernel_rows(index, self.group.own(self.size))

    def product_error(self) -> float:
        """What rounding adds to an entry of A v, in units of v's: the root mean square over some rows, beside sums in
        float64, for a v of independent entries, as those that conjugate gradients multiply are. No random draw of the
        caller's enters."""
        generator, index = torch.Generator().manual_seed(0), self.some_points()
        v = torch.randn(self.size, _MEASURED_COLUMNS, generator=generator, dtype=torch.float64)
        v = v.to(self.device, self.dtype)
        exact = self.kernel_rows(index) @ v.double() + v[index].double()
        return float((self.matmul(v)[index].double() - exact).square().mean().sqrt())

    def expected_product_error(self) -> float:
        """What `product_error` grows with, from the kernel between some points alone: the rounding of n terms of its
        size. The factor, 2 to 20, is that of the order in which they are added."""
        index = self.some_points()
        size = float(self.kernel_rows(index, index).square().mean().sqrt())
        return 0.5 * torch.finfo(self.dtype).eps * size * math.sqrt(self.size)

    def some_points(self) -> Tensor:
        """At most 64 of them, evenly spread, by which all are judged."""
        count = min(_SAMPLE, self.size)
        return torch.arange(count, device=self.device) * self.size // count

    def log_det_noise(self) -> Tensor:
        """log |D| = log |K + D| - log |A|."""
        return self.noise.log().sum()

    def limits(self, dtype: torch.dtype | None = None) -> PrecisionLimits:
        """Those of its working precision, or of another."""
        return PrecisionLimits.of(self.kernel_diagonal(), self.dtype if dtype is None else dtype)


@dataclass(frozen=True)
class PrecisionLimits:
    """How far a precision may serve a kernel matrix in units of its noise. Only the trace is looked at."""

    size: int
    dtype: torch.dtype
    signal: float  # the mean of its diagonal
    condition: float  # an upper bound of the condition number of A = S K S + I: 1 + trace(S K S), since A >= I
    rounding: float  # what rounding the matrix may add to it

    @staticmethod
    def of(diagonal: Tensor, dtype: torch.dtype) -> PrecisionLimits:
        """Independent rounding errors of at most eps/2 in n x n entries make a matrix of norm about eps sqrt(n) / 2
        times the entries' size, which the smallest eigenvalues, those of the noise, feel first."""
        n, trace = diagonal.shape[0], float(diagonal.sum(dtype=torch.float64))
        return PrecisionLimits(n, dtype, trace / n, 1.0 + trace, 0.5 * torch.finfo(dtype).eps * trace / math.sqrt(n))


# An error e of the products adds about e^2 per point to the value (keggundirected, 6,000 points: 2e-5 at e = 0.003,
# 5e-4 at 0.03, 0.012 at 0.11), at this limit 2e-4; twice that to its derivative by the log of the outputscale.
PRODUCT_LIMIT = 0.015
_SAMPLE = 64
_MEASURED_COLUMNS = 8  # one would be multiplied by another routine
# Up to here float32 gradients were within 1e-3 of float64 ones in every case tried; beyond it that is not sure.
ROUNDING_LIMIT = 0.05
# In float64 the condition number says more: up to here values and gradients were within 4e-4 of those in more digits.
CONDITION_LIMIT = 1e14


def warn_of_rounding(
    limits: PrecisionLimits, widened: bool = False, factor: float = 1.0, felt: Callable[[float], bool] | None = None
) -> bool:
    """Say so where a precision cannot serve a kernel matrix in units of its noise; whether it was said.

    factor: by which its rounding errors exceed independent ones (`rtgp.kernels.likeness`). felt: whether an error so
    large reaches a solution, where that is known (`rtgp.preconditioners.amplification`).
    """
    if not math.isfinite(limits.signal):
        raise InputError(
            "Expected a finite kernel matrix. The kernel gives NaN or infinity between a training point and itself: "
            "look at its formula, lower the learning rate, or use float64."
        )
    rounding = factor * limits.rounding
    wide = limits.dtype == torch.float64
    if rounding > ROUNDING_LIMIT and (felt is None or felt(rounding)):
        _warn(limits, f"rounding the kernel matrix amounts to {rounding:.2g} times the noise", widened)
    elif wide and limits.condition > CONDITION_LIMIT:
        _warn(limits, f"its condition number may be {limits.condition:.1e}", widened)
    else:
        return False
    return True


def warn_of_products(
    system: WhitenedSystem, widened: bool = False, reaching: Callable[[float], float] | None = None
) -> bool:
    """Say so where the precision cannot serve the products of a system; whether it was said. reaching: as much of an
    error as reaches a solution, where that is known (`rtgp.preconditioners.amplification`)."""
    error = system.product_error()
    # Not where it is not finite: that is for the solver to tell.
    if not error > PRODUCT_LIMIT or (reaching is not None and not reaching(error) > PRODUCT_LIMIT):
        return False
    _warn(system.limits(), f"rounding in its products amounts to {error:.2g} times the noise", widened)
    return True


def warn_of_failure(error: Exception) -> None:
    """Say that float64 is taken because a solve in float32 has failed."""
    warnings.warn(
        f"torch.float32 is too coarse for this system: {str(error).split('. ')[0]}. "
        "It is computed in float64 from here on, which takes longer and more memory.",
        PrecisionWarning,
        stacklevel=3,
    )


def _warn(limits: PrecisionLimits, what: str, widened: bool) -> None:
    wide = limits.dtype == torch.float64
    remedy = "Gradients may be off. Use float64 (model.double()), or raise the lower bound of the noise"
    if widened:
        remedy = "It is computed in float64 from here on, which takes longer and more memory"
    elif wide:
        remedy = "Gradients may be off. Raise the lower bound of the noise"
    warnings.warn(
        f"{limits.dtype} is too coarse for this system: {what} "
        f"(signal {limits.signal:.1e} times the noise, n = {limits.size}). {remedy}.",
        PrecisionWarning,
        stacklevel=3,
    )
