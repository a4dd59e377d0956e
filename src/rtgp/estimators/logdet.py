"""log|A| and y^T A^-1 y from the step lengths of a run of conjugate gradients, on the CPU.

With weights of one these are stochastic Lanczos quadrature (biased upwards, Theorem 1) and CG's own value (biased
downwards); with Russian-roulette weights both are unbiased (appendix C).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.solvers import CGResult
from rtgp.solvers.lanczos import log_quadrature_series


def log_det(result: CGResult, columns: slice, draw: int, preconditioner_logdet: Tensor) -> Tensor:
    """log|A| from probes of covariance P (one estimate for each, (p,)), with the weights of a draw."""
    series = log_quadrature_series(result.gamma[:, columns], result.beta[:, columns])  # (J, p)
    total = (result.weights[:, draw, None] * series).sum(0)
    return result.squares[0, columns] * total + preconditioner_logdet


def inverse_quadratic(result: CGResult, column: int, draw: int) -> Tensor:
    """b^T A^-1 b for one right-hand side: its increments are gamma_j r^T P^-1 r."""
    increments = result.gamma[:, column] * result.squares[:-1, column]
    return torch.sum(result.weights[:, draw] * increments)
