"""Makes golden.json: exact Gaussian process regression in 50 digits, from the textbook's formulas.

    python tests/golden/make_golden.py

Nothing here imports torch or rtgp. The numbers come from mpmath; `by_scipy` computes the same in float64 with
scipy.linalg, so that a slip in one of the two shows.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import scipy.linalg
from mpmath import mpf

DIGITS = 50
PATH = Path(__file__).parent / "golden.json"
KERNELS = ("rbf", "matern12", "matern32", "matern52")
# (n, d, noise, outputscale); from five inputs on the library forms distances another way.
SHAPES = ((12, 1, 0.3, 1.0), (25, 3, 0.01, 2.5), (25, 6, 1e-4, 0.4), (20, 2, 1e-6, 30.0))

Case = dict[str, Any]
Matrix = list[list[mpf]]


def inputs(kernel: str, n: int, d: int, noise: float, outputscale: float) -> Case:
    """Three decimals each, so that the file is short and everyone reads the same numbers."""
    source = random.Random(f"{kernel} {n} {d}")

    def number(low: float, high: float) -> float:
        return round(source.uniform(low, high), 3)

    x = [[number(-2, 2) for _ in range(d)] for _ in range(n)]
    new = [[number(-2, 2) for _ in range(d)] for _ in range(4)]
    return {
        "kernel": kernel,
        "x": x,
        "y": [number(-2, 2) for _ in range(n)],
        "x_new": [*new, x[2], [50.0] * d],  # a training point, and one far from all
        "lengthscales": [number(0.5, 3.0) for _ in range(d)],
        "outputscale": outputscale,
        "noise": noise,
        "mean": number(-1, 1),
    }


def covariance(kernel: str, r: mpf) -> mpf:
    if kernel == "rbf":
        return mpmath.exp(-(r**2) / 2)
    if kernel == "matern12":
        return mpmath.exp(-r)
    if kernel == "matern32":
        return (1 + mpmath.sqrt(3) * r) * mpmath.exp(-mpmath.sqrt(3) * r)
    return (1 + mpmath.sqrt(5) * r + 5 * r**2 / 3) * mpmath.exp(-mpmath.sqrt(5) * r)


def slope(kernel: str, r: mpf) -> mpf:
    """-k'(r) / r, by which dk/dlengthscale_a is this times difference_a^2 / lengthscale_a^3; 0 at r = 0."""
    if kernel == "rbf":
        return mpmath.exp(-(r**2) / 2)
    if kernel == "matern12":
        return mpmath.exp(-r) / r if r else mpf(0)
    if kernel == "matern32":
        return 3 * mpmath.exp(-mpmath.sqrt(3) * r)
    return mpf(5) / 3 * (1 + mpmath.sqrt(5) * r) * mpmath.exp(-mpmath.sqrt(5) * r)


def distance(a: list[float], b: list[float], lengthscales: list[mpf]) -> mpf:
    return mpmath.sqrt(sum(((mpf(s) - mpf(t)) / u) ** 2 for s, t, u in zip(a, b, lengthscales, strict=True)))


def cholesky(A: Matrix) -> Matrix:
    n = len(A)
    L = [[mpf(0)] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            left = A[i][j] - mpmath.fdot(L[i][:j], L[j][:j])
            L[i][j] = mpmath.sqrt(left) if i == j else left / L[j][j]
    return L


def solve(L: Matrix, b: list[mpf]) -> list[mpf]:
    """(L L^T)^-1 b"""
    n, z = len(b), list(b)
    for i in range(n):
        z[i] = (z[i] - mpmath.fdot(L[i][:i], z[:i])) / L[i][i]
    for i in reversed(range(n)):
        z[i] = (z[i] - mpmath.fsum(L[k][i] * z[k] for k in range(i + 1, n))) / L[i][i]
    return z


def by_mpmath(case: Case) -> Case:
    """Value, gradient and posterior."""
    with mpmath.workdps(DIGITS):
        kernel, x, new = case["kernel"], case["x"], case["x_new"]
        n, d = len(x), len(x[0])
        scales = [mpf(one) for one in case["lengthscales"]]
        outputscale, noise, mean = (mpf(case[key]) for key in ("outputscale", "noise", "mean"))
        r = [[distance(a, b, scales) for b in x] for a in x]
        K = [[outputscale * covariance(kernel, one) for one in row] for row in r]
        L = cholesky([[K[i][j] + (noise if i == j else 0) for j in range(n)] for i in range(n)])
        residual = [mpf(one) - mean for one in case["y"]]
        alpha = solve(L, residual)
        inverse = [solve(L, [mpf(i == j) for i in range(n)]) for j in range(n)]
        log_det = 2 * mpmath.fsum(mpmath.log(L[i][i]) for i in range(n))
        value = (log_det + mpmath.fdot(residual, alpha) + n * mpmath.log(2 * mpmath.pi)) / 2

        def pulled(dK: Matrix) -> mpf:
            """1/2 (tr(K_hat^-1 dK) - alpha^T dK alpha)"""
            return mpmath.fsum((inverse[i][j] - alpha[i] * alpha[j]) * dK[i][j] for i in range(n) for j in range(n)) / 2

        H = [[outputscale * slope(kernel, one) for one in row] for row in r]

        def by_lengthscale(a: int) -> Matrix:
            squares = [[(mpf(s[a]) - mpf(t[a])) ** 2 for t in x] for s in x]
            return [[H[i][j] * squares[i][j] / scales[a] ** 3 for j in range(n)] for i in range(n)]

        gradient = {
            "lengthscales": [pulled(by_lengthscale(a)) for a in range(d)],
            "outputscale": pulled([[one / outputscale for one in row] for row in K]),
            "noise": mpmath.fsum(inverse[i][i] - alpha[i] ** 2 for i in range(n)) / 2,
            "mean": -mpmath.fsum(alpha),
        }
        cross = [[outputscale * covariance(kernel, distance(a, b, scales)) for b in x] for a in new]
        return {
            "value": value,
            "gradient": gradient,
            "posterior_mean": [mean + mpmath.fdot(row, alpha) for row in cross],
            "posterior_variance": [outputscale - mpmath.fdot(row, solve(L, row)) for row in cross],
        }


def by_scipy(case: Case) -> Case:
    """The same in float64: scipy.linalg's Cholesky factor, and matrices in place of sums."""
    x, new = np.array(case["x"]), np.array(case["x_new"])
    scales, outputscale, noise = np.array(case["lengthscales"]), case["outputscale"], case["noise"]

    def profile(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r = np.sqrt((((a[:, None] - b) / scales) ** 2).sum(-1))
        if case["kernel"] == "rbf":
            return np.exp(-(r**2) / 2), np.exp(-(r**2) / 2)
        if case["kernel"] == "matern12":
            return np.exp(-r), np.exp(-r) / np.where(r > 0, r, np.inf)
        root = np.sqrt(3.0 if case["kernel"] == "matern32" else 5.0) * r
        if case["kernel"] == "matern32":
            return (1 + root) * np.exp(-root), 3 * np.exp(-root)
        return (1 + root + root**2 / 3) * np.exp(-root), 5 / 3 * (1 + root) * np.exp(-root)

    unit, slopes = profile(x, x)
    residual = np.array(case["y"]) - case["mean"]
    factor = scipy.linalg.cho_factor(outputscale * unit + noise * np.eye(len(x)), lower=True)
    alpha = scipy.linalg.cho_solve(factor, residual)
    inverse = scipy.linalg.cho_solve(factor, np.eye(len(x)))
    weight = 0.5 * (inverse - np.outer(alpha, alpha))
    squares = (x[:, None] - x) ** 2  # (n, n, d)
    cross = outputscale * profile(new, x)[0]
    log_det = 2 * np.log(np.diag(factor[0])).sum()
    return {
        "value": 0.5 * (log_det + residual @ alpha + len(x) * np.log(2 * np.pi)),
        "gradient": {
            "lengthscales": np.einsum("ij,ij,ija->a", weight, outputscale * slopes, squares) / scales**3,
            "outputscale": (weight * unit).sum(),
            "noise": np.trace(weight),
            "mean": -alpha.sum(),
        },
        "posterior_mean": case["mean"] + cross @ alpha,
        "posterior_variance": outputscale - np.einsum("ij,ji->i", cross, scipy.linalg.cho_solve(factor, cross.T)),
    }


def rounded(found: Any) -> Any:
    """Everything to the nearest float64."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    return [rounded(one) for one in found] if isinstance(found, (list, np.ndarray)) else float(found)


def all_inputs() -> dict[str, Case]:
    return {
        f"{kernel}, n = {shape[0]}, d = {shape[1]}, noise = {shape[2]:g}": inputs(kernel, *shape)
        for kernel in KERNELS
        for shape in SHAPES
    }


def main() -> None:
    cases = {name: {**case, **rounded(by_mpmath(case))} for name, case in all_inputs().items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    PATH.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
