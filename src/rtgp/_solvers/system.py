"""The linear system of a Gaussian process in units of its noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._precision import DEFAULT, PrecisionLimits
from rtgp.distributed import Group
from rtgp.operators import KernelOperator

_SAMPLE = 64


class NoiseUnits:
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
        self._scale = self.noise.rsqrt()[:, None]  # (n, 1), float64
        self._working_scale = self._scale.to(self.dtype, copy=True)

    def renew(self, form: KernelForm, noise: Tensor) -> bool:
        """Become the system of another kernel and noise, in the same memory, where the operator can do that."""
        renewed = self.operator.renew(form, noise.detach().min())
        if renewed:
            self.noise = noise.detach().double().expand(self.size)
            self._scale.copy_(self.noise.rsqrt()[:, None])
            self._working_scale.copy_(self._scale)
        return renewed

    @property
    def chunk(self) -> int | None:
        """Iterations of conjugate gradients between two looks; None: as the device prefers.

        What ranks exchange cannot be recorded for later. There it is one.
        """
        return 1 if self.group.exchanges else None

    def scaled(self, v: Tensor) -> Tensor:
        """S v for v (n, r), in the dtype of v."""
        return v * self._scale.to(v.dtype)

    def unscaled(self, v: Tensor) -> Tensor:
        """S^-1 v for v (n, r), in the dtype of v."""
        return v / self._scale.to(v.dtype)

    def matmul(self, v: Tensor) -> Tensor:
        """A v, (n, r) -> (n, r)."""
        return self.operator.scaled_matmul(v, self._working_scale[:, 0])

    def remainder(self, target: Tensor, start: Tensor) -> Tensor:
        """target - A start, (n, r), in their dtype.

        With sums in float64: near a solution the terms of A start cancel to a small fraction of their size, and an
        error e of the sum would add A^-1 e to the solution and e^T A^-1 e, which is never negative, to the quadratic.
        """
        product = self._scale * self.operator.wide_matmul(self._working_scale * start)
        return (target.double() - product - start.double()).to(target.dtype)

    def kernel_diagonal(self) -> Tensor:
        """The diagonal of S K S, (n,), float64."""
        return self.operator.diagonal().double() / self.noise

    def kernel_rows(self, index: Tensor, columns: slice | Tensor | None = None) -> Tensor:
        """(S K S)[index, columns], (k, m), float64; all n columns by default."""
        s = self._scale[:, 0]
        across = s if columns is None else s[columns]
        return self.operator.rows(index, columns).double().mul_(s[index, None]).mul_(across)

    def own_kernel_rows(self, index: Tensor) -> Tensor:
        """(S K S)[index, own], (k, m), float64: the columns that are this rank's."""
        return self.kernel_rows(index, self.group.own(self.size))

    def product_error(self, columns: int = DEFAULT.columns) -> float:
        """What rounding adds to an entry of A v, in units of v's entries.

        It is the root mean square over some rows, beside sums in float64, for a v of independent entries, like those
        that conjugate gradients multiply. It has random numbers of its own.
        """
        generator, index = torch.Generator().manual_seed(0), self.sample_index()
        v = torch.randn(self.size, columns, generator=generator, dtype=torch.float64)
        v = v.to(self.device, self.dtype)
        exact = self.kernel_rows(index) @ v.double() + v[index].double()
        return float((self.matmul(v)[index].double() - exact).square().mean().sqrt())

    def expected_product_error(self) -> float:
        """What `product_error` grows with, from the kernel between some points alone.

        It is the rounding of n terms of its size. The factor between the two, 2 to 20, is that of the order in which
        the terms are added.
        """
        index = self.sample_index()
        size = float(self.kernel_rows(index, index).square().mean().sqrt())
        return 0.5 * torch.finfo(self.dtype).eps * size * math.sqrt(self.size)

    def sample_index(self) -> Tensor:
        """At most 64 points, evenly spread, by which all are judged."""
        count = min(_SAMPLE, self.size)
        return torch.arange(count, device=self.device) * self.size // count

    def log_det_noise(self) -> Tensor:
        """log |D| = log |K + D| - log |A|."""
        return self.noise.log().sum()

    def limits(self, dtype: torch.dtype | None = None) -> PrecisionLimits:
        """The limits of its working precision, or of another."""
        return PrecisionLimits.of(self.kernel_diagonal(), self.dtype if dtype is None else dtype)
