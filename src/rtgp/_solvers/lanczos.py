"""Lanczos quadrature of the logarithm, as the series that appendix C of the paper telescopes.

The step lengths gamma_j and ratios beta_j of conjugate gradients are the LDL^T factors of the Lanczos matrix T:
T_11 = 1/gamma_1, T_jj = 1/gamma_j + beta_{j-1}/gamma_{j-1}, T_{j,j+1} = sqrt(beta_j)/gamma_j.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Nodes of the trapezoidal rule in s = log(t / lambda_max): its error is exp(-2 pi^2 / step), and what is cut off on
# either side is below 1e-13 for condition numbers up to 1e14.
_STEP = 0.55
_LOWEST, _HIGHEST = -62.0, 17.0


def log_quadrature_series(gamma: Tensor, beta: Tensor) -> Tensor:
    """Delta_j = e_1^T (log T_j - log T_{j-1}) e_1 with log T_0 = 0, for gamma and beta (J, r) -> (J, r), on the CPU.

    With log x = int_0^inf 1/(1+t) - 1/(x+t) dt, the increment is -int [(T_j+t)^-1 - (T_{j-1}+t)^-1]_11 dt, and that
    difference is p_j^2 / delta_j, where delta are the pivots of the LDL^T factorisation of T + t and
    p_j = prod_{i<j} T_{i,i+1} / delta_i. All terms of one sign: nothing cancels, and J increments cost O(J) times the
    number of nodes, instead of J eigenvalue problems.
    """
    if gamma.shape[0] == 0:
        return torch.zeros_like(gamma)
    # A long chain of operations on few numbers: in NumPy, whose calls are the cheapest.
    return torch.from_numpy(_log_quadrature_series(gamma.numpy(), beta.numpy()))


def _log_quadrature_series(gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    alive = gamma > 0
    inverse = np.where(alive, 1.0 / np.where(alive, gamma, 1.0), 0.0)
    series = np.zeros_like(gamma)
    series[0] = np.where(alive[0], np.log(np.maximum(inverse[0], 1e-300)), 0.0)
    # T's rows sum to at most 4 max(1/gamma_j): enough as a scale for the nodes.
    lower = beta * inverse
    largest = np.maximum(inverse.max(0) + lower.max(0), 1e-300)  # (r,)
    t = largest * np.exp(np.arange(_LOWEST, _HIGHEST, _STEP))[:, None]  # (nodes, r)
    # The pivots of T itself are 1/gamma_j; what t adds to them has a recurrence without subtractions.
    excess = t
    pivot = inverse[0] + excess
    coupling = np.ones_like(t)
    with np.errstate(all="ignore"):  # columns without an iteration have no scale
        for j in range(1, gamma.shape[0]):
            ratio = lower[j - 1] / pivot
            coupling = coupling * (ratio * (inverse[j - 1] / pivot))  # p_j^2
            excess = t + excess * ratio
            pivot = np.where(alive[j], inverse[j] + excess, 1.0)
            series[j] = (t * coupling / pivot).sum(0)
    series[1:] = np.where(alive[1:], -_STEP * series[1:], 0.0)
    return series


def log_derivative_vectors(gamma: Tensor, beta: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """U, V (n, J) with d(q^T log(M) q) = sum_l U_l^T dA V_l, for one column of a converged run.

    M = F^-1 A F^-T with F fixed; basis (J, n) are the vectors F^-T q_j. The derivative of log at M is, in the
    basis of Ritz vectors, the matrix of divided differences of log (Daleckii and Krein).
    """
    count = int((gamma > 0).sum())
    g, b, basis = gamma[:count], beta[:count], basis[:count]
    inverse = 1.0 / g
    diagonal = inverse.clone()
    diagonal[1:] += b[:-1] * inverse[:-1]
    offdiagonal = b[:-1].sqrt() * inverse[:-1]
    tridiagonal = torch.diag(diagonal) + torch.diag(offdiagonal, 1) + torch.diag(offdiagonal, -1)
    ritz, vectors = torch.linalg.eigh(tridiagonal)
    ratio = (ritz[:, None] - ritz[None, :]) / ritz[None, :]
    small = ratio.abs() < 1e-8
    divided = torch.where(small, 1.0 - ratio / 2.0, torch.log1p(ratio) / torch.where(small, 1.0, ratio)) / ritz[None, :]
    first = vectors[0]  # (J,)
    ritz_vectors = basis.T.to(vectors.dtype) @ vectors  # (n, J)
    weighted = ritz_vectors * first
    return weighted @ divided, weighted
