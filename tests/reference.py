"""Slow, independent float64 NumPy versions of what the library computes, written from the equations.

Nothing here imports rtgp or torch. `KINDS` are the closed-form kernels; every function takes plain arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

KINDS = ("rbf", "matern12", "matern32", "matern52")


def _distances(x1: Array, x2: Array, lengthscales: Array) -> Array:
    """r_ij = |(x1_i - x2_j) / lengthscale| by explicit differences, (m, k)."""
    difference = (x1[:, None, :] - x2[None, :, :]) / lengthscales
    return np.sqrt((difference**2).sum(-1))


def kernel_matrix(kind: str, x1: Array, x2: Array, lengthscales: Array, outputscale: float = 1.0) -> Array:
    """outputscale * k(r), (m, k)."""
    r = _distances(x1, x2, lengthscales)
    if kind == "rbf":
        k = np.exp(-(r**2) / 2)
    elif kind == "matern12":
        k = np.exp(-r)
    elif kind == "matern32":
        k = (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    elif kind == "matern52":
        k = (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
    else:
        raise ValueError(kind)
    return outputscale * k


def _radial_derivative_over_r(kind: str, r: Array) -> Array:
    """k'(r) / r; 0 at r = 0 for Matern 1/2, which has no derivative there."""
    if kind == "rbf":
        return -np.exp(-(r**2) / 2)
    if kind == "matern12":
        safe = np.where(r > 0, r, 1.0)
        return np.where(r > 0, -np.exp(-r) / safe, 0.0)
    if kind == "matern32":
        return -3 * np.exp(-np.sqrt(3) * r)
    if kind == "matern52":
        return -5 / 3 * (1 + np.sqrt(5) * r) * np.exp(-np.sqrt(5) * r)
    raise ValueError(kind)


def kernel_lengthscale_derivatives(kind: str, x: Array, lengthscales: Array, outputscale: float = 1.0) -> Array:
    """dK / dlengthscale_a, (d, n, n): dr/dl_a = -(x_ia - x_ja)^2 / (l_a^3 r)."""
    r = _distances(x, x, lengthscales)
    squares = (x[:, None, :] - x[None, :, :]) ** 2  # (n, n, d)
    derivative = -_radial_derivative_over_r(kind, r)[:, :, None] * squares / lengthscales**3
    return outputscale * np.moveaxis(derivative, -1, 0)


def kernel_input_derivatives(kind: str, x1: Array, x2: Array, lengthscales: Array, outputscale: float = 1.0) -> Array:
    """dK_ij / dx1_i, (m, k, d): dr/dx1_ia = (x1_ia - x2_ja) / (l_a^2 r)."""
    r = _distances(x1, x2, lengthscales)
    difference = x1[:, None, :] - x2[None, :, :]
    return outputscale * _radial_derivative_over_r(kind, r)[:, :, None] * difference / lengthscales**2


def negative_log_likelihood(K_hat: Array, y: Array) -> float:
    """Eq. 1: (log|K_hat| + y^T K_hat^-1 y + n log 2 pi) / 2."""
    sign, logdet = np.linalg.slogdet(K_hat)
    assert sign > 0
    return float(0.5 * (logdet + y @ np.linalg.inv(K_hat) @ y + len(y) * np.log(2 * np.pi)))


def negative_log_likelihood_gradient(K_hat: Array, y: Array, derivatives: Array) -> Array:
    """Eq. 2 for every dK_hat in derivatives (p, n, n): (tr(K_hat^-1 dK_hat) - y^T K_hat^-1 dK_hat K_hat^-1 y) / 2."""
    inverse = np.linalg.inv(K_hat)
    solve = inverse @ y
    return np.array([0.5 * (np.trace(inverse @ dK) - solve @ dK @ solve) for dK in derivatives])


def conjugate_gradients(
    A: Array, b: Array, iterations: int, P: Array | None = None
) -> tuple[list[Array], list[float], list[float]]:
    """Preconditioned CG on one right-hand side: the iterates x_0 = 0, x_1, ..., and gamma_j, beta_j."""
    solve = np.linalg.inv(np.eye(len(b)) if P is None else P)
    x, r = np.zeros_like(b), b.copy()
    z = solve @ r
    direction = z
    iterates, gammas, betas = [x], [], []
    for _ in range(iterations):
        gamma = (r @ z) / (direction @ A @ direction)
        x = x + gamma * direction
        new_r = r - gamma * A @ direction
        new_z = solve @ new_r
        beta = (new_r @ new_z) / (r @ z)
        direction = new_z + beta * direction
        r, z = new_r, new_z
        iterates.append(x)
        gammas.append(float(gamma))
        betas.append(float(beta))
    return iterates, gammas, betas


def lanczos_matrix(A: Array, q: Array, steps: int) -> Array:
    """T of the Lanczos iteration started at q, with full reorthogonalisation (twice), (steps, steps)."""
    basis = [q / np.linalg.norm(q)]
    T = np.zeros((steps, steps))
    for j in range(steps):
        w = A @ basis[j]
        T[j, j] = basis[j] @ w
        for _ in range(2):
            for previous in basis:
                w = w - (previous @ w) * previous
        if j + 1 < steps:
            T[j, j + 1] = T[j + 1, j] = np.linalg.norm(w)
            basis.append(w / T[j, j + 1])
    return T


def log_quadrature_values(T: Array) -> Array:
    """e_1^T log(T_j) e_1 for the leading blocks T_1, ..., T_J, by eigendecomposition."""
    values = []
    for j in range(1, len(T) + 1):
        eigenvalues, vectors = np.linalg.eigh(T[:j, :j])
        values.append(float((vectors[0] ** 2 * np.log(eigenvalues)).sum()))
    return np.array(values)


def greedy_pivoted_cholesky(K: Array, rank: int) -> Array:
    """L (n, rank): each step takes the largest entry of the diagonal of K - L L^T."""
    n = len(K)
    factor = np.zeros((n, rank))
    for k in range(rank):
        residual = K - factor @ factor.T
        pivot = int(np.argmax(np.diag(residual)))
        factor[:, k] = residual[:, pivot] / np.sqrt(residual[pivot, pivot])
    return factor


def average_information(K_hat: Array, residual: Array, derivatives: Array, mean_derivatives: Array) -> Array:
    """(p, p) for dK_hat (p, n, n) and dmean (p, n): 1/2 alpha^T dK_a K_hat^-1 dK_b alpha + dm_a^T K_hat^-1 dm_b.

    Gilmour, Thompson and Cullis (1995); alpha = K_hat^-1 residual.
    """
    inverse = np.linalg.inv(K_hat)
    columns = derivatives @ (inverse @ residual)  # (p, n)
    return 0.5 * columns @ inverse @ columns.T + mean_derivatives @ inverse @ mean_derivatives.T


def fourier_kernel_matrix(x: Array, lengthscales: Array, frequencies: Array, outputscale: float = 1.0) -> Array:
    """K_J of m = J/2 frequencies (d, m), Sec. 2.2: outputscale (2/J) sum_i cos(omega_i^T (x - x') / lengthscale)."""
    difference = (x[:, None, :] - x[None, :, :]) / lengthscales
    return outputscale * np.cos(difference @ frequencies).mean(-1)


def effective_dimension(K: Array, noise: float) -> float:
    """tr(K (K + noise)^-1)."""
    return float(np.trace(np.linalg.solve(K + noise * np.eye(len(K)), K)))


def nearest_earlier_distances(x: Array, order: NDArray[np.int64], count: int) -> Array:
    """(n, count): distances of each point to its nearest earlier points, ascending; infinite where there are fewer."""
    found = np.full((len(x), count), np.inf)
    for place, point in enumerate(order):
        distances = np.sort(np.sqrt(((x[order[:place]] - x[point]) ** 2).sum(1)))[:count]
        found[point, : len(distances)] = distances
    return found


def inverse_factor(A: Array, neighbours: NDArray[np.int64]) -> Array:
    """G (n, n): row i is the last row of the inverse Cholesky factor of A on (neighbours_i, i); -1: no neighbour."""
    G = np.zeros_like(A)
    for i, row in enumerate(neighbours):
        points = [*row[row >= 0], i]
        G[i, points] = np.linalg.inv(np.linalg.cholesky(A[np.ix_(points, points)]))[-1]
    return G
