"""The likelihood of points on a tensor grid in more digits than float64 has, for any n: NumPy and mpmath alone.

On a grid {a_i} x {b_j} the RBF kernel is a Kronecker product, K = s K_a (x) K_b, whose eigenvalues are products of
those of two small matrices. mpmath finds these in 40 digits, so that the smallest of them, far below rounding in
float64, are right; the sums over n are in NumPy's longdouble (64 bits of mantissa on x86). What a grid cannot have is
added in closed form: a point c times measured is one point of noise / c, and a point far from all others is alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import mpmath
import numpy as np
from numpy.typing import NDArray

Long = NDArray[np.longdouble]
_DIGITS = 40


@dataclass(frozen=True)
class Hyperparameters:
    lengthscales: tuple[float, float]
    outputscale: float
    noise: float
    mean: float


@dataclass(frozen=True)
class Exact:
    """Everything a float64 that is right to its last digits. Gradients are in logarithms, but for the mean."""

    loss: float  # negative log marginal likelihood, not divided by n
    quadratic: float
    gradient: NDArray[np.float64]  # (5,): two lengthscales, outputscale, noise, mean
    scale: NDArray[np.float64]  # (5,): the sizes of the terms that each is the difference of


@lru_cache(maxsize=512)
def _spectrum(points: tuple[float, ...], lengthscale: float) -> tuple[Long, Long, Long, Long]:
    """Of K_ij = exp(-((t_i - t_j) / lengthscale)^2 / 2): eigenvalues (p,), eigenvectors (p, p), K and dK / dlog
    lengthscale."""
    with mpmath.workdps(_DIGITS):
        z = [mpmath.mpf(t) / mpmath.mpf(lengthscale) for t in points]
        squared = [[(s - t) ** 2 for t in z] for s in z]
        K = mpmath.matrix([[mpmath.exp(-one / 2) for one in row] for row in squared])
        slope = [[K[i, j] * squared[i][j] for j in range(len(z))] for i in range(len(z))]
        eigenvalues, vectors = mpmath.eigsy(K)
        return (
            np.array([_long(one) for one in eigenvalues]),
            _matrix(vectors.tolist()),
            _matrix(K.tolist()),
            _matrix(slope),
        )


def _long(number: mpmath.mpf) -> np.longdouble:
    """The nearest longdouble: two float64 hold more than it does."""
    high = float(number)
    return np.longdouble(high) + np.longdouble(float(number - high))


def _matrix(rows: list[list[mpmath.mpf]]) -> Long:
    return np.array([[_long(one) for one in row] for row in rows])


def grid(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """All pairs, (p q, 2), the second running fastest."""
    return np.stack(np.meshgrid(a, b, indexing="ij"), -1).reshape(-1, 2)


def on_grid(a: NDArray[np.float64], b: NDArray[np.float64], y: NDArray[np.float64], at: Hyperparameters) -> Exact:
    """y (p q,) at the points of `grid(a, b)`."""
    left, u, K_a, slope_a = _spectrum(tuple(a), at.lengthscales[0])
    right, v, K_b, slope_b = _spectrum(tuple(b), at.lengthscales[1])
    s, noise = np.longdouble(at.outputscale), np.longdouble(at.noise)
    residual = y.astype(np.longdouble).reshape(len(a), len(b)) - np.longdouble(at.mean)
    signal = s * np.outer(left, right)
    total = signal + noise
    turned = u.T @ residual @ v
    alpha = u @ (turned / total) @ v.T
    quadratic = (turned**2 / total).sum()
    loss = (np.log(total).sum() + quadratic + total.size * np.log(2 * np.longdouble(np.pi))) / 2
    # dK = s K_a' (x) K_b: its trace against K_hat^-1 needs the diagonal of U^T K_a' U alone
    traces = [
        (np.diag(u.T @ slope_a @ u)[:, None] * right * s / total).sum(),
        (left[:, None] * np.diag(v.T @ slope_b @ v) * s / total).sum(),
        (signal / total).sum(),
        (noise / total).sum(),
    ]
    forms = [
        s * (alpha * (slope_a @ alpha @ K_b)).sum(),
        s * (alpha * (K_a @ alpha @ slope_b)).sum(),
        (signal * (turned / total) ** 2).sum(),
        (noise * (turned / total) ** 2).sum(),
    ]
    gradient = [(t - f) / 2 for t, f in zip(traces, forms, strict=True)] + [-alpha.sum()]
    scale = [(abs(t) + abs(f)) / 2 for t, f in zip(traces, forms, strict=True)] + [np.abs(alpha).sum()]
    return Exact(float(loss), float(quadratic), np.array(gradient, np.float64), np.array(scale, np.float64))


def repeated(a: NDArray[np.float64], b: NDArray[np.float64], values: NDArray[np.float64], at: Hyperparameters) -> Exact:
    """values (c, p q): c measurements at every point of the grid."""
    count = len(values)
    mean = values.mean(0)
    scatter = float(((values - mean) ** 2).sum())
    merged = on_grid(a, b, mean, Hyperparameters(at.lengthscales, at.outputscale, at.noise / count, at.mean))
    points = values.shape[1]
    spread = points * (count - 1) / 2
    lacking = spread * np.log(2 * np.pi * at.noise) + points * np.log(count) / 2 + scatter / (2 * at.noise)
    gradient, scale = merged.gradient.copy(), merged.scale.copy()
    gradient[3] += spread - scatter / (2 * at.noise)
    scale[3] += spread + scatter / (2 * at.noise)
    scale[4] += float(np.abs(values - mean).sum()) / at.noise  # cancels at every point, but is there
    return Exact(merged.loss + lacking, merged.quadratic + scatter / at.noise, gradient, scale)


def with_stranger(found: Exact, y: float, at: Hyperparameters) -> Exact:
    """One more point, so far away that its covariance with the others is zero."""
    total, residual = at.outputscale + at.noise, y - at.mean
    quadratic = residual**2 / total
    parts = np.array([0.0, 0.0, at.outputscale / total, at.noise / total, 0.0])
    gradient = found.gradient + parts * (1 - quadratic) / 2
    gradient[4] -= residual / total
    scale = found.scale + parts * (1 + quadratic) / 2
    scale[4] += abs(residual) / total
    loss = found.loss + (np.log(2 * np.pi * total) + quadratic) / 2
    return Exact(float(loss), found.quadratic + quadratic, gradient, scale)


def scattered(x: NDArray[np.float64], y: NDArray[np.float64], at: Hyperparameters) -> Exact:
    """Any points (n, 2), by Cholesky in longdouble: O(n^3) without a library, for n up to a thousand."""
    z = x.astype(np.longdouble) / np.array(at.lengthscales, np.longdouble)
    squares = (z[:, None] - z) ** 2  # (n, n, 2)
    K = np.longdouble(at.outputscale) * np.exp(-squares.sum(-1) / 2)
    n = len(y)
    lower = K + np.longdouble(at.noise) * np.eye(n, dtype=np.longdouble)
    for j in range(n):
        lower[j:, j] -= lower[j:, :j] @ lower[j, :j]
        lower[j:, j] /= np.sqrt(lower[j, j])
        lower[j, j + 1 :] = 0
    half = np.eye(n, dtype=np.longdouble)  # becomes the inverse of the factor
    for i in range(n):
        half[i, : i + 1] = (half[i, : i + 1] - lower[i, :i] @ half[:i, : i + 1]) / lower[i, i]
    inverse = np.ascontiguousarray(half.T) @ half
    residual = y.astype(np.longdouble) - np.longdouble(at.mean)
    alpha = half.T @ (half @ residual)
    quadratic = ((half @ residual) ** 2).sum()
    loss = np.log(np.diag(lower)).sum() + (quadratic + n * np.log(2 * np.longdouble(np.pi))) / 2
    slopes = [K * squares[:, :, 0], K * squares[:, :, 1], K]
    traces = [(inverse * one).sum() for one in slopes] + [np.longdouble(at.noise) * np.trace(inverse)]
    forms = [alpha @ one @ alpha for one in slopes] + [np.longdouble(at.noise) * (alpha @ alpha)]
    gradient = [(t - f) / 2 for t, f in zip(traces, forms, strict=True)] + [-alpha.sum()]
    scale = [(abs(t) + abs(f)) / 2 for t, f in zip(traces, forms, strict=True)] + [np.abs(alpha).sum()]
    return Exact(float(loss), float(quadratic), np.array(gradient, np.float64), np.array(scale, np.float64))
