"""Lanczos quadrature of the logarithm, against eigendecompositions, in 50 digits where float64 would not do."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from rtgp._solvers.lanczos import log_derivative_vectors, log_quadrature_series


def matrix(n: int, condition: float, seed: int = 0) -> np.ndarray:
    """Symmetric, eigenvalues spread evenly on a log scale from 1 to `condition`."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return (q * np.logspace(0, np.log10(condition), n)) @ q.T


def coefficients(A: np.ndarray, columns: int, steps: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """gamma and beta (steps, columns) of reference CG runs."""
    rhs = np.random.default_rng(seed).standard_normal((len(A), columns))
    runs = [reference.conjugate_gradients(A, b, steps) for b in rhs.T]
    return tuple(torch.tensor([run[k] for run in runs], dtype=torch.float64).T.contiguous() for k in (1, 2))


def tridiagonal(gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """T from the coefficients of CG (appendix C)."""
    T = np.diag(1 / gamma)
    for j in range(1, len(gamma)):
        T[j, j] += beta[j - 1] / gamma[j - 1]
        T[j, j - 1] = T[j - 1, j] = np.sqrt(beta[j - 1]) / gamma[j - 1]
    return T


def exact_increments(gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Increments of e_1^T log(T_j) e_1 in 50 digits: eigenvalues of T far below its norm are lost in float64."""
    with mpmath.workdps(50):
        g, b = [mpmath.mpf(float(v)) for v in gamma], [mpmath.mpf(float(v)) for v in beta]
        values = [mpmath.mpf(0)]
        for size in range(1, len(g) + 1):
            T = mpmath.zeros(size)
            for j in range(size):
                T[j, j] = 1 / g[j] + (b[j - 1] / g[j - 1] if j else 0)
                if j:
                    T[j, j - 1] = T[j - 1, j] = mpmath.sqrt(b[j - 1]) / g[j - 1]
            eigenvalues, vectors = mpmath.eigsy(T)
            values.append(mpmath.fsum(vectors[0, k] ** 2 * mpmath.log(eigenvalues[k]) for k in range(size)))
        return np.array([float(after - before) for before, after in itertools.pairwise(values)])


def test_coefficients_are_those_of_lanczos() -> None:
    """T from CG is T from Lanczos with reorthogonalisation: the formula of the appendix, and the reference itself."""
    A = matrix(30, 100.0)
    gamma, beta = coefficients(A, 1, 12)
    b = np.random.default_rng(1).standard_normal((30, 1))[:, 0]
    np.testing.assert_allclose(
        tridiagonal(gamma[:, 0].numpy(), beta[:, 0].numpy()), reference.lanczos_matrix(A, b, 12), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("condition", [1.0 + 1e-3, 10.0, 1e4])
def test_series_is_the_eigenvalue_reference(condition: float) -> None:
    gamma, beta = coefficients(matrix(40, condition), 3, 6 if condition < 2 else 25)
    partial = log_quadrature_series(gamma, beta).cumsum(0)
    for k in range(3):
        wanted = reference.log_quadrature_values(tridiagonal(gamma[:, k].numpy(), beta[:, k].numpy()))
        np.testing.assert_allclose(partial[:, k].numpy(), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("condition, scale", [(1e2, 1.0), (1e6, 1e-8), (1e10, 1e8), (1e12, 1.0)])
def test_every_increment_to_ten_digits(condition: float, scale: float) -> None:
    """Each increment by itself, however small: the weights of a roulette multiply the last ones."""
    gamma, beta = coefficients(scale * matrix(40, condition), 1, 12)
    series = log_quadrature_series(gamma, beta)[:, 0]
    wanted = exact_increments(gamma[:, 0].numpy(), beta[:, 0].numpy())
    np.testing.assert_allclose(series.numpy(), wanted, rtol=1e-10, atol=0)


def test_hard_coefficients() -> None:
    """Steps that jump by ten orders of magnitude, as CG shows on clustered spectra."""
    generator = torch.Generator().manual_seed(3)
    gamma = 10.0 ** (10 * torch.rand(10, 3, generator=generator, dtype=torch.float64) - 10)
    beta = 10.0 ** (4 * torch.rand(10, 3, generator=generator, dtype=torch.float64) - 2)
    series = log_quadrature_series(gamma, beta)
    for k in range(3):
        wanted = exact_increments(gamma[:, k].numpy(), beta[:, k].numpy())
        np.testing.assert_allclose(series[:, k].numpy(), wanted, rtol=1e-10, atol=1e-300)


def test_frozen_columns() -> None:
    """A column that froze midway (gamma = beta = 0) adds nothing more, and does not touch its neighbours."""
    gamma, beta = coefficients(matrix(40, 1e4), 4, 20)
    wanted = log_quadrature_series(gamma, beta)
    stops = [20, 7, 1, 0]
    frozen_gamma, frozen_beta = gamma.clone(), beta.clone()
    for k, stop in enumerate(stops):
        frozen_gamma[stop:, k] = 0.0
        frozen_beta[max(stop - 1, 0) :, k] = 0.0  # as CG leaves it: the last ratio is not used
    series = log_quadrature_series(frozen_gamma, frozen_beta)
    assert bool(torch.isfinite(series).all())
    for k, stop in enumerate(stops):
        torch.testing.assert_close(series[:stop, k], wanted[:stop, k], rtol=1e-11, atol=1e-14)
        assert bool((series[stop:, k] == 0).all())


def test_signs_of_theorem_1() -> None:
    """Gauss quadrature of the logarithm comes from above: after the first term the series only falls."""
    A = matrix(60, 1e8)
    gamma, beta = coefficients(A, 5, 50)
    series = log_quadrature_series(gamma, beta)
    assert bool((series[1:] <= 0).all())
    rhs = np.random.default_rng(1).standard_normal((60, 5))
    eigenvalues, vectors = np.linalg.eigh(A)
    q = vectors.T @ (rhs / np.linalg.norm(rhs, axis=0))
    exact = (q**2 * np.log(eigenvalues)[:, None]).sum(0)
    assert bool((series.cumsum(0).numpy() >= exact - 1e-8).all())


@pytest.mark.parametrize("shape", [(0, 3), (1, 2), (5, 0)])
def test_small_shapes(shape: tuple[int, int]) -> None:
    gamma = torch.full(shape, 0.5, dtype=torch.float64)
    series = log_quadrature_series(gamma, torch.zeros_like(gamma))
    assert series.shape == shape
    if shape == (1, 2):
        torch.testing.assert_close(series, torch.full(shape, np.log(2.0), dtype=torch.float64))


@pytest.mark.parametrize("condition", [3.0, 1e4])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_derivative_vectors(condition: float, preconditioned: bool) -> None:
    """sum_l U_l^T dA V_l is the derivative of q^T log(P^-1/2 A P^-1/2) q, by central differences."""
    n = 12
    rng = np.random.default_rng(7)
    A, b = matrix(n, condition), rng.standard_normal(n)
    half = np.linalg.inv(np.linalg.cholesky(matrix(n, 5.0, seed=9))) if preconditioned else np.eye(n)
    w, Q = np.linalg.eigh(half.T @ half)
    root = (Q * np.sqrt(w)) @ Q.T  # P^-1/2, symmetric
    q = root @ b / np.linalg.norm(root @ b)

    def value(M: np.ndarray) -> float:
        eigenvalues, vectors = np.linalg.eigh(root @ M @ root)
        return float(((vectors.T @ q) ** 2 * np.log(eigenvalues)).sum())

    # A full Lanczos basis of P^-1/2 A P^-1/2 and its coefficients as CG would give them.
    T = reference.lanczos_matrix(root @ A @ root, q, n)
    basis = [q]
    for j in range(n - 1):
        next_vector = root @ A @ root @ basis[j] - T[j, j] * basis[j] - (T[j - 1, j] * basis[j - 1] if j else 0)
        for _ in range(2):
            for previous in basis:
                next_vector = next_vector - (previous @ next_vector) * previous
        basis.append(next_vector / np.linalg.norm(next_vector))
    gamma, beta = np.zeros(n), np.zeros(n)
    pivot = T[0, 0]
    for j in range(n):
        gamma[j] = 1 / pivot
        if j + 1 < n:
            beta[j] = (T[j, j + 1] * gamma[j]) ** 2
            pivot = T[j + 1, j + 1] - T[j, j + 1] ** 2 / pivot
    U, V = log_derivative_vectors(
        torch.from_numpy(gamma), torch.from_numpy(beta), torch.from_numpy(np.array(basis) @ root)
    )
    for seed in range(3):
        dA = np.random.default_rng(seed).standard_normal((n, n))
        dA = dA + dA.T
        h = 1e-5
        wanted = (value(A + h * dA) - value(A - h * dA)) / (2 * h)
        np.testing.assert_allclose(np.sum(U.numpy() * (dA @ V.numpy())), wanted, rtol=1e-5, atol=1e-7)


def test_derivative_vectors_with_equal_eigenvalues() -> None:
    """A multiple of the identity: divided differences of equal values, and the run ends after one step."""
    basis = torch.zeros(3, 4, dtype=torch.float64)
    basis[0, 0] = 1.0
    gamma = torch.tensor([0.5, 0.0, 0.0], dtype=torch.float64)
    U, V = log_derivative_vectors(gamma, torch.zeros(3, dtype=torch.float64), basis)
    torch.testing.assert_close(U @ V.T, 0.5 * torch.outer(basis[0], basis[0]))
