"""log|A| and y^T A^-1 y from the step lengths of a run of conjugate gradients, on the CPU.

With weights of one these are stochastic Lanczos quadrature (biased upwards, Theorem 1) and CG's own value (biased
downwards); with Russian-roulette weights both are unbiased (appendix C).
"""

from __future__ import annotations

from torch import Tensor

from rtgp.solvers import CGResult
from rtgp.solvers.lanczos import log_quadrature_series


def log_det(series: Tensor, weights: Tensor, preconditioner_logdet: Tensor) -> Tensor:
    """log|A| from its `log_det_series` (one estimate for each probe, (p,)), with the weights (J,) of a draw."""
    return (weights[:, None] * series).sum(0) + preconditioner_logdet


def inverse_quadratic(result: CGResult, column: int, draw: int) -> Tensor:
    """b^T A^-1 b for one right-hand side, with the weights of a draw."""
    return (result.weights[:, draw] * quadratic_series(result, column)).sum()


def log_det_series(result: CGResult, columns: slice) -> Tensor:
    """The increments of log|P^-1 A|, (J, p), from probes of covariance P."""
    return result.squares[0, columns] * log_quadrature_series(result.gamma[:, columns], result.beta[:, columns])


def quadratic_series(result: CGResult, column: int) -> Tensor:
    """The increments of b^T A^-1 b, (J,), for one right-hand side: gamma_j r^T P^-1 r."""
    return result.gamma[:, column] * result.squares[:-1, column]
