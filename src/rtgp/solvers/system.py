"""The linear system of a Gaussian process in units of its noise."""

from __future__ import annotations

from torch import Tensor

from rtgp.operators import KernelOperator


class WhitenedSystem:
    """A = S K S + I with S = D^(-1/2), D the noise variances: K + D = S^-1 A S^-1.

    One form for equal and for known per-point noise. A is never smaller than the identity, a preconditioner needs no
    noise of its own, and y^T (K + D)^-1 y / n is of order one, so that residuals mean the same on every data set.
    """

    def __init__(self, operator: KernelOperator, noise: Tensor) -> None:
        self.operator = operator
        self.size, self.dtype, self.device = operator.shape[0], operator.dtype, operator.device
        self.noise = noise.detach().double().expand(self.size)  # (n,)
        self._whitener = self.noise.rsqrt()[:, None]  # (n, 1), float64
        self._working_whitener = self._whitener.to(self.dtype)

    def whiten(self, v: Tensor) -> Tensor:
        """S v for v (n, r), in the dtype of v."""
        return v * self._whitener.to(v.dtype)

    def unwhiten(self, v: Tensor) -> Tensor:
        """S^-1 v for v (n, r), in the dtype of v."""
        return v / self._whitener.to(v.dtype)

    def matmul(self, v: Tensor) -> Tensor:
        """A v, (n, r) -> (n, r)."""
        s = self._working_whitener
        return self.operator.matmul(v * s).mul_(s).add_(v)

    def kernel_diagonal(self) -> Tensor:
        """The diagonal of S K S, (n,), float64."""
        return self.operator.diagonal().double() / self.noise

    def kernel_rows(self, index: Tensor) -> Tensor:
        """(S K S)[index, :], (k, n), float64."""
        s = self._whitener[:, 0]
        return self.operator.rows(index).double().mul_(s[index, None]).mul_(s)

    def log_det_noise(self) -> Tensor:
        """log |D| = log |K + D| - log |A|."""
        return self.noise.log().sum()


def float32_condition(system: WhitenedSystem) -> float:
    """An upper bound of the condition number of A: trace(S K S) + 1, since A >= I."""
    return float(system.kernel_diagonal().sum()) + 1.0
