"""`rtgp.solve` and `rtgp.logdet` with matrices of NumPy and SciPy, and the standard errors that they return."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import rtgp
from rtgp.errors import InputError, SettingError
from rtgp.truncation import Geometric, ResidualDriven

SIDE = 6


def precision(dtype: type = np.float64) -> scipy.sparse.csr_matrix:
    """Of a random field on a grid: sparse, definite."""
    path = scipy.sparse.diags([-1.0, 2.2, -1.0], [-1, 0, 1], shape=(SIDE, SIDE))
    one = scipy.sparse.identity(SIDE)
    return (scipy.sparse.kron(path, one) + scipy.sparse.kron(one, path)).tocsr().astype(dtype)


A = precision()
DENSE = A.toarray()
B = np.random.default_rng(0).normal(size=(SIDE * SIDE, 2))
KINDS = {
    "array": DENSE,
    "sparse": A,
    "sparse array": scipy.sparse.csc_array(A),
    "coordinates": A.tocoo(),
    "operator": aslinearoperator(A),
    "own operator": LinearOperator(A.shape, matvec=lambda v: A @ v),
}
TIGHT = ResidualDriven(1e-9)  # goes on until it is solved


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_solve(kind: str) -> None:
    found = rtgp.solve(KINDS[kind], B, TIGHT, generator=generator())
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, np.linalg.solve(DENSE, B), rtol=1e-6, atol=1e-7)
    one = rtgp.solve(KINDS[kind], B[:, 0], TIGHT, generator=generator())
    np.testing.assert_allclose(one, found[:, 0], atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_logdet_is_that_of_the_tensor(kind: str) -> None:
    found = rtgp.logdet(KINDS[kind], generator=generator(), probes=4)
    assert isinstance(found, float)
    same = rtgp.logdet(torch.tensor(DENSE), generator=generator(), probes=4)
    assert found == pytest.approx(float(same), rel=1e-9)


@pytest.mark.parametrize("kind", ["array", "sparse"])
def test_with_a_preconditioner(kind: str) -> None:
    found = rtgp.solve(KINDS[kind], B, TIGHT, rtgp.PivotedCholesky(5), generator())
    np.testing.assert_allclose(found, np.linalg.solve(DENSE, B), rtol=1e-6, atol=1e-7)
    value = rtgp.logdet(KINDS[kind], None, rtgp.PivotedCholesky(5), generator(), probes=200)
    assert value == pytest.approx(np.linalg.slogdet(DENSE)[1], abs=1.0)
    with pytest.raises(InputError, match="rows of the matrix"):
        rtgp.logdet(KINDS["operator"], preconditioner=rtgp.PivotedCholesky(5))


def test_number_formats() -> None:
    half = rtgp.solve(precision(np.float32), B, TIGHT, generator=generator())
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, np.linalg.solve(DENSE, B), atol=1e-3)
    whole = scipy.sparse.csr_matrix(np.diag([2, 4, 8]))
    np.testing.assert_allclose(rtgp.solve(whole, np.array([2, 4, 8]), generator=generator()), np.ones(3))
    assert isinstance(rtgp.solve(A, torch.tensor(B), generator=generator()), torch.Tensor)


@pytest.mark.parametrize(
    "matrix, words",
    [
        (DENSE[:3], "square"),
        (A[:3], "square"),
        (DENSE + np.eye(len(DENSE), k=1), "symmetric"),
        (A + scipy.sparse.eye(len(DENSE), k=1), "symmetric"),
        (A * np.nan, "finite"),
        (A.astype(complex), "real"),
        (DENSE.astype(complex), "real"),
        ("A", "a sparse matrix"),
        (np.array([["a"]]), "real numbers"),
    ],
)
def test_other_matrices(matrix: object, words: str) -> None:
    for call in (lambda: rtgp.solve(matrix, B), lambda: rtgp.logdet(matrix)):
        with pytest.raises(InputError, match=words):
            call()


def test_errors_need_a_scatter() -> None:
    with pytest.raises(SettingError, match="at least 2 probes"):
        rtgp.logdet(A, probes=1, return_error=True)
    with pytest.raises(SettingError, match="at least 2 draws"):
        rtgp.solve(A, B, draws=1, return_error=True)
    with pytest.raises(SettingError, match="positive integer"):
        rtgp.solve(A, B, draws=0)


RULE = Geometric(0.4)  # ends so early that the truncation makes most of the error
REPEATS = 300


def test_standard_error_of_a_log_determinant() -> None:
    """The mean square of the stated errors against the variance of 300 estimates, whose ratio is 1 up to chance."""
    draw = generator()
    found = np.array([rtgp.logdet(A, RULE, generator=draw, probes=4, return_error=True) for _ in range(REPEATS)])
    exact = np.linalg.slogdet(DENSE)[1]
    assert abs(found[:, 0].mean() - exact) < 4 * found[:, 0].std() / np.sqrt(REPEATS)  # false alarm: 6e-5
    # Far out of chance's reach: two estimates of a variance with 300 and more numbers; false alarm below 1e-3.
    assert 0.5 < (found[:, 1] ** 2).mean() / found[:, 0].var() < 2.0


def test_standard_error_of_a_solve() -> None:
    """As above, all entries together; and without bias, in 72 comparisons: false alarm 5e-4."""
    draw = generator()
    pairs = [rtgp.solve(A, B, RULE, generator=draw, draws=6, return_error=True) for _ in range(REPEATS)]
    values, errors = (np.array(part) for part in zip(*pairs, strict=True))
    assert values.shape == errors.shape == (REPEATS, *B.shape)
    off = (values.mean(0) - np.linalg.solve(DENSE, B)) / (values.std(0) / np.sqrt(REPEATS))
    assert np.abs(off).max() < 4.5
    assert 0.5 < (errors**2).mean() / values.var(0).mean() < 2.0


def test_draws_average_and_keep_the_gradient() -> None:
    """With a rule that goes on to the end, several draws change nothing; the gradient comes through their mean."""
    a = torch.tensor(DENSE, requires_grad=True)
    b = torch.tensor(B[:, 0])
    value, error = rtgp.solve(a, b, TIGHT, generator=generator(), draws=3, return_error=True)
    assert value.shape == error.shape == b.shape
    assert not error.requires_grad
    value.sum().backward()
    solved = np.linalg.solve(DENSE, np.ones(len(b)))
    np.testing.assert_allclose(a.grad, -np.outer(solved, np.linalg.solve(DENSE, b)), rtol=1e-5, atol=1e-6)
    value, error = rtgp.logdet(a, generator=generator(), return_error=True)
    assert value.requires_grad
    assert not error.requires_grad
