"""log|A| and y^T A^-1 y from the step lengths of a run of conjugate gradients, on the CPU; their gradients (Eq. 2).

With weights of one these are stochastic Lanczos quadrature (biased upwards, Theorem 1) and CG's own value (biased
downwards); with Russian-roulette weights both are unbiased (appendix C).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp._solvers import CGResult
from rtgp._solvers.lanczos import log_quadrature_series
from rtgp._traces.probes import Probes


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


def trace_vectors(probes: Probes, solves: Tensor) -> tuple[Tensor, Tensor]:
    """u, v (n, p) with E[sum_p u_p^T dA v_p] = tr(A^-1 dA), given unbiased solves A^-1 z (n, p)."""
    return probes.dual / probes.dual.shape[1], solves


def gradient_vectors(trace: tuple[Tensor, Tensor], first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """u, v with E[sum u^T dA v] = 1/2 (t tr(A^-1 dA) - sum_k y_k^T A^-1 dA A^-1 y_k) for t outputs y_k, Eq. 2.

    `first` and `second` (n, t) are two solves A^-1 y_k with independent truncations, without which the product would be
    biased.
    """
    u, v = trace
    left = torch.cat([0.5 * first.shape[1] * u, -0.5 * first], dim=1)
    right = torch.cat([v, second], dim=1)
    return left, right
