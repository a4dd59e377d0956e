"""Pivoted Cholesky factors, and P = L L^T + I applied safely in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from rtgp._preconditioners import Identity, LowRank, PivotedCholesky
from rtgp._preconditioners.low_rank import low_rank_of_matrix
from rtgp._preconditioners.pivoted_cholesky import from_pivots, greedy_pivoted_cholesky, random_pivoted_cholesky
from rtgp.errors import SettingError

N = 80


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kernel(kind: str = "matern32", lengthscale: float = 1.0, n: int = N, spread: float = 1.0) -> Tensor:
    x = spread * torch.randn(n, 3, generator=generator(), dtype=torch.float64).numpy()
    return torch.from_numpy(reference.kernel_matrix(kind, x, x, np.full(3, lengthscale), 2.0))


def rows(K: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda index: K[index]


def smallest_eigenvalue(M: Tensor) -> float:
    return float(torch.linalg.eigvalsh(M)[0])


def test_greedy_is_the_reference() -> None:
    K = kernel()
    factor = greedy_pivoted_cholesky(K.diagonal(), rows(K), 20)
    np.testing.assert_allclose(factor.numpy(), reference.greedy_pivoted_cholesky(K.numpy(), 20), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pivoting", ["greedy", "random"])
@pytest.mark.parametrize("rank", [1, 5, 17, 40])
def test_what_is_left_is_positive_semidefinite(pivoting: str, rank: int) -> None:
    """0 <= L L^T <= K, and as many columns as asked for."""
    K = kernel()
    factor = PivotedCholesky(rank, pivoting).factor(K.diagonal(), rows(K), 1, generator())
    assert factor.shape == (N, rank)
    assert smallest_eigenvalue(K - factor @ factor.T) > -1e-10


@pytest.mark.parametrize("pivoting", ["greedy", "random"])
def test_exact_at_full_rank(pivoting: str) -> None:
    K = kernel("matern12")
    factor = PivotedCholesky(N, pivoting).factor(K.diagonal(), rows(K), 1, generator())
    torch.testing.assert_close(factor @ factor.T, K, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pivoting", ["greedy", "random"])
@pytest.mark.parametrize("copies", [2, 40])
def test_duplicates(pivoting: str, copies: int) -> None:
    """A rank-deficient K: the factor stops at its rank and reproduces it."""
    index = torch.arange(N) % (N // copies)
    K = kernel("matern12")[index][:, index]
    factor = PivotedCholesky(N, pivoting).factor(K.diagonal(), rows(K), 1, generator())
    assert factor.shape[1] <= N // copies
    assert bool(torch.isfinite(factor).all())
    torch.testing.assert_close(factor @ factor.T, K, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pivoting", ["greedy", "random"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1e-1, 1e-3, 1e-6])
def test_clustered_points(pivoting: str, dtype: torch.dtype, spread: float) -> None:
    """Points far closer than a lengthscale, rows in float32 or float64: finite, and no larger than K."""
    K = kernel("rbf", spread=spread)
    rounded = K.to(dtype).double()
    factor = PivotedCholesky(N, pivoting).factor(rounded.diagonal(), rows(rounded), 1, generator())
    assert bool(torch.isfinite(factor).all())
    assert factor.shape[1] >= 1
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    assert smallest_eigenvalue(K - factor @ factor.T) > -tolerance
    torch.testing.assert_close(factor @ factor.T, K, rtol=0, atol=max(tolerance, 1e-5))


@pytest.mark.parametrize("pivoting", ["greedy", "random"])
def test_as_far_as_the_rows_are_exact(pivoting: str) -> None:
    """A smooth kernel whose amplitude is 10^9 times the noise: rows in float64 leave nothing of it, and so they may;
    what float32 would have lost, here 9 to 70 times the noise, is left."""
    K = 1e9 * kernel("rbf", 2.0) / 2.0
    settings, exact_rows = PivotedCholesky(N, pivoting), rows(K)
    left = {}
    for dtype in (torch.float32, torch.float64):
        factor = settings.factor(K.diagonal(), exact_rows, 1, generator(), dtype=dtype)
        left[dtype] = float((K - factor @ factor.T).diagonal().max())
    assert left[torch.float64] < 1e-3
    assert left[torch.float32] > 1.0


def test_random_pivots_are_repeatable_and_random() -> None:
    K = kernel()
    first, again, other = (random_pivoted_cholesky(K.diagonal(), rows(K), 20, generator(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first @ first.T, other @ other.T)


@pytest.mark.parametrize("pivoting", ["greedy", "random"])
def test_known_pivots_are_taken_again(pivoting: str) -> None:
    """On the same matrix they give the same approximation, on one that has moved a little one that has too."""
    K, moved = kernel(lengthscale=1.0), kernel(lengthscale=1.0 + 1e-6)
    blocks: list[Tensor] = []
    first = PivotedCholesky(20, pivoting).factor(K.diagonal(), rows(K), 1, generator(), pivots=blocks)
    again = from_pivots(K.diagonal(), rows(K), blocks)
    torch.testing.assert_close(again @ again.T, first @ first.T, rtol=0, atol=1e-10)
    near = from_pivots(moved.diagonal(), rows(moved), blocks)
    assert float((near - again).abs().max()) < 1e-4


def test_matrix_of_zeros() -> None:
    """Nothing to factorise: no columns, and P = I."""
    zero = torch.zeros(N, N, dtype=torch.float64)
    r = torch.randn(N, 2, generator=generator(), dtype=torch.float64)
    for pivoting in ("greedy", "random"):
        factor = PivotedCholesky(5, pivoting).factor(zero.diagonal(), rows(zero), 1, generator())
        assert factor.shape == (N, 0)
        P = LowRank(factor, torch.float64)
        torch.testing.assert_close(P.solve(r)[0], r)
        assert float(P.logdet()) == 0.0


def test_automatic_rank() -> None:
    assert PivotedCholesky().rank_for(10_000, 12) == 489  # isqrt(2 n r)
    assert PivotedCholesky().rank_for(3, 12) == 3
    assert PivotedCholesky(rank=50).rank_for(20, 1) == 20


@pytest.mark.parametrize("rank", [0, -1, 2.5, "5"])
def test_bad_rank(rank: object) -> None:
    with pytest.raises(SettingError, match="rank"):
        PivotedCholesky(rank=rank)


def test_bad_pivoting() -> None:
    with pytest.raises(SettingError, match="pivoting"):
        PivotedCholesky(pivoting="best")


def low_rank(top: float, k: int = 10, n: int = N) -> Tensor:
    """L (n, k) whose L L^T has eigenvalues from 1 to `top`, with dependent columns in no particular basis."""
    q = torch.linalg.qr(torch.randn(n, k, generator=generator(1), dtype=torch.float64))[0]
    turn = torch.linalg.qr(torch.randn(k, k, generator=generator(2), dtype=torch.float64))[0]
    return q * torch.logspace(0, np.log10(top) / 2, k, dtype=torch.float64) @ turn


@pytest.mark.parametrize("top", [1.0, 1e4, 1e8])
def test_solve_float64(top: float) -> None:
    factor = low_rank(top)
    P = factor @ factor.T + torch.eye(N, dtype=torch.float64)
    r = torch.randn(N, 4, generator=generator(3), dtype=torch.float64)
    kept = r.clone()
    solved, squares = LowRank(factor, torch.float64).solve(r)
    # By eigenvectors: an inverse of P itself would lose eight digits.
    q, s, _ = torch.linalg.svd(factor, full_matrices=False)
    wanted = r - q @ ((s**2 / (1 + s**2))[:, None] * (q.T @ r))
    torch.testing.assert_close(solved, wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(P @ solved, r, rtol=0, atol=1e-15 * top * 100 + 1e-10)
    torch.testing.assert_close(squares, (r * wanted).sum(0), rtol=1e-10, atol=0)
    assert torch.equal(r, kept)


@pytest.mark.parametrize("top", [1e2, 1e6, 1e8])
def test_solve_float32_stays_positive_definite(top: float) -> None:
    factor = low_rank(top)
    exact = LowRank(factor, torch.float64)
    safe = LowRank(factor, torch.float32)
    q = torch.linalg.qr(factor)[0]
    noise = torch.randn(N, 10, generator=generator(4), dtype=torch.float64)
    for r in (noise, q, q + 1e-3 * noise, 1e4 * q[:, :1] + noise):  # the span of L is where Woodbury fails
        r32 = r.float()
        solved, squares = safe.solve(r32)
        wanted, wanted_squares = exact.solve(r32.double())
        size = r32.double().norm(dim=0)
        assert bool(((solved.double() - wanted).norm(dim=0) < 1e-6 * size).all())
        assert bool((squares > 0).all())
        assert squares.dtype == torch.float64
        assert bool(((squares - wanted_squares).abs() < 1e-6 * size * wanted_squares.sqrt() + 1e-12 * size**2).all())
    matrix = safe.solve(torch.eye(N))[0].double()
    # As far as a matrix of float32 numbers of order one can be: their rounding alone moves an eigenvalue by 3e-8.
    assert smallest_eigenvalue((matrix + matrix.T) / 2) > 1.0 / (1.0 + top) - 3e-8


def test_columns_are_independent() -> None:
    """A large and a small right-hand side in one call do not disturb each other."""
    P = LowRank(low_rank(1e6), torch.float64)
    r = torch.randn(N, 2, generator=generator(5), dtype=torch.float64)
    together = P.solve(r * torch.tensor([1e12, 1e-12], dtype=torch.float64))[0]
    torch.testing.assert_close(together[:, 1:] * 1e12, P.solve(r[:, 1:])[0], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("top", [1.0, 1e6])
def test_square_root_and_determinant(top: float) -> None:
    factor = low_rank(top)
    dense = factor @ factor.T + torch.eye(N, dtype=torch.float64)
    P = LowRank(factor, torch.float32)
    root = torch.linalg.inv(P.whiten(torch.eye(N, dtype=torch.float64)))
    torch.testing.assert_close(root @ root.T, dense, rtol=1e-10, atol=1e-12 * top)
    torch.testing.assert_close(P.logdet(), torch.linalg.slogdet(dense)[1], rtol=1e-9, atol=0)


def test_identity() -> None:
    P, r = Identity(), torch.randn(N, 2, generator=generator())
    solved, squares = P.solve(r)
    assert torch.equal(solved, r)
    assert solved.data_ptr() != r.data_ptr()
    assert squares.dtype == torch.float64
    assert float(P.logdet()) == 0.0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_any_matrix(scale: float) -> None:
    """L L^T + c I of a matrix without noise: consistent solve, root and determinant, and a better condition."""
    A = scale * (kernel("rbf") + 1e-2 * torch.eye(N, dtype=torch.float64))
    P = low_rank_of_matrix(PivotedCholesky(20), A.diagonal(), rows(A), torch.float64, generator())
    inverse, identity = P.solve(torch.eye(N, dtype=torch.float64))[0], torch.eye(N, dtype=torch.float64)
    root = torch.linalg.inv(P.whiten(identity))
    dense = root @ root.T
    torch.testing.assert_close(dense @ inverse, identity, rtol=0, atol=1e-9)
    torch.testing.assert_close(P.logdet(), torch.linalg.slogdet(dense)[1], rtol=1e-9, atol=1e-9)
    root = torch.linalg.cholesky(inverse)
    spectrum = torch.linalg.eigvalsh(root.T @ A @ root)
    assert float(spectrum[-1] / spectrum[0]) < 0.1 * float(torch.linalg.cond(A))
