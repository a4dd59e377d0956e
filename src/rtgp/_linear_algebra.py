"""Unbiased solves and log-determinants for any symmetric positive definite matrix, Gaussian processes or not.

The same code as RR-CG: conjugate gradients as a series, truncated by Russian roulette. The matrix may be a tensor, a
`linear_operator` object or a function v (n, r) -> A v; where that is differentiable, so are the results, and their
gradients are unbiased too. NumPy arrays, SciPy's sparse matrices and its LinearOperator serve as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from linear_operator import LinearOperator
from torch import Tensor
from torch.autograd.function import once_differentiable

from rtgp._preconditioners import Identity, PivotedCholesky
from rtgp._preconditioners.low_rank import Scaled, low_rank_of_matrix
from rtgp._solvers import CGResult, Output, Whitening, conjugate_gradients
from rtgp._solvers.cg import WORKING_PRECISION
from rtgp._traces import draw_probes, log_det_series, trace_vectors
from rtgp.errors import InputError, NotPositiveDefiniteError, SettingError
from rtgp.operators._outside import Outside, from_outside, tensor_of
from rtgp.truncation import ResidualDriven, SurvivalRule, russian_roulette

Product = Callable[[Tensor], Tensor]
DRAWS_FOR_AN_ERROR = 10
_NOT_FINITE = "Expected a finite matrix. Got NaN or infinity: check what computed it."
SYMMETRY = {torch.float32: 1e-4, torch.float64: 1e-8}  # largest |A - A^T| over largest |A| taken for rounding


def solve(
    A: Any,
    b: Any,
    truncation: SurvivalRule | None = None,
    preconditioner: PivotedCholesky | Product | None = None,
    generator: torch.Generator | None = None,
    tolerance: float | None = None,
    *,
    draws: int | None = None,
    return_error: bool = False,
) -> Any:
    """An unbiased estimate of A^-1 b, by conjugate gradients truncated at random.

    All columns of b share one truncation. For a loss that is linear in the result, the gradient with respect to A and b
    is unbiased too: it comes from a second solve with its own truncation.

    Parameters
    ----------
    A : Tensor, LinearOperator, ndarray, sparse matrix or callable
        A symmetric positive definite matrix (n, n), of torch, `linear_operator`, NumPy or SciPy (sparse, or a
        `LinearOperator`), or a function v (n, r) -> A v.
    b : Tensor or ndarray
        The right-hand side, (n,) or (n, r).
    truncation : SurvivalRule, optional
        A rule from `rtgp.truncation`. By default `ResidualDriven()`.
    preconditioner : PivotedCholesky or callable, optional
        Settings, or a function r -> P^-1 r. By default none.
    generator : torch.Generator, optional
        The source of random numbers. By default torch's own generator.
    tolerance : float, optional
        Error ratio at which a column has converged. By default 1e-4 in float32 and 1e-8 in float64.
    draws : int, optional
        Independent truncations of one run, whose mean is returned. By default 1, and 10 where an error is asked for.
    return_error : bool
        Whether to return standard errors too, from the scatter of the draws.

    Returns
    -------
    Tensor or ndarray, or a pair of them
        The estimate, of the kind and shape of b. It is differentiable where A or b is. With `return_error`, the
        standard error of each entry too.

    Raises
    ------
    InputError
        If the shapes, dtypes or devices of A and b do not match, or b is not finite.
    NotPositiveDefiniteError
        If A or the preconditioner is found not to be positive definite.

    Examples
    --------
    >>> import torch, rtgp
    >>> A = torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64))
    >>> x = rtgp.solve(A, torch.ones(5, dtype=torch.float64), generator=torch.Generator().manual_seed(0))
    >>> x.shape
    torch.Size([5])
    >>> bool((A @ x - 1).norm() < 0.5)
    True

    NumPy in, NumPy out:

    >>> import numpy as np
    >>> x, error = rtgp.solve(A.numpy(), np.ones(5), generator=torch.Generator().manual_seed(0), return_error=True)
    >>> bool(np.abs(x - 1 / np.arange(1.0, 6.0)).max() < 5 * error.max() + 1e-6)
    True
    """
    draws = _checked_draws(draws, return_error)
    as_numpy = isinstance(b, np.ndarray)
    A = from_outside(A)
    if as_numpy:
        b = tensor_of(b, "b")
        b = b.to(A.dtype) if isinstance(A, (Tensor, LinearOperator, Outside)) else b
    if not isinstance(b, Tensor) or b.ndim not in (1, 2):
        came = f"shape {tuple(b.shape)}" if isinstance(b, Tensor) else type(b).__name__
        raise InputError(f"Expected b as a tensor or a NumPy array of shape (n,) or (n, r). Got {came} instead.")
    matrix = _Matrix.read(A, b.shape[0], b.dtype, b.device)
    if matrix.size != b.shape[0]:
        raise InputError(f"Expected b with {matrix.size} rows, as the matrix has. Got shape {tuple(b.shape)}.")
    if (matrix.dtype, matrix.device) != (b.dtype, b.device):
        raise InputError(
            f"Expected b in the matrix's {matrix.dtype} on {matrix.device}. Got {b.dtype} on {b.device}: pass b.to(A)."
        )
    if not bool(torch.isfinite(b).all()):
        raise InputError("Expected a finite right-hand side b. Got NaN or infinity: check what computed it.")
    columns = b if b.ndim == 2 else b[:, None]
    conditioner = _preconditioner(matrix, preconditioner, generator)
    rule = ResidualDriven() if truncation is None else truncation

    def run(rhs: Tensor) -> Tensor:  # (n, r) -> (draws, n, r)
        r = rhs.shape[1]
        outputs = [Output(k, draw) for draw in range(draws) for k in range(r)]
        found = _run(matrix, conditioner.whiten(rhs), rule, outputs, draws, conditioner, generator, tolerance)
        return found.solutions.reshape(-1, draws, r).transpose(0, 1)

    estimates = run(columns.detach())
    estimate = estimates.mean(0)
    # d(A^-1 b) = A^-1 (db - dA A^-1 b): the product carries the derivative of A, whatever A is.
    product = matrix.product(estimate)
    result: Tensor = _ImplicitSolve.apply(product, columns, estimate, lambda rhs: run(rhs).mean(0))  # type: ignore[no-untyped-call]
    shaped = _as_given(result if b.ndim == 2 else result[:, 0], as_numpy)
    if not return_error:
        return shaped
    error = estimates.std(0) / math.sqrt(draws)
    return shaped, _as_given(error if b.ndim == 2 else error[:, 0], as_numpy)


def logdet(
    A: Any,
    truncation: SurvivalRule | None = None,
    preconditioner: PivotedCholesky | None = None,
    generator: torch.Generator | None = None,
    *,
    probes: int = 10,
    size: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    tolerance: float | None = None,
    return_error: bool = False,
) -> Any:
    """An unbiased estimate of `log|A|` from random probe vectors.

    Its gradient is unbiased too.

    Parameters
    ----------
    A : Tensor, LinearOperator, ndarray, sparse matrix or callable
        A symmetric positive definite matrix (n, n), of torch, `linear_operator`, NumPy or SciPy (sparse, or a
        `LinearOperator`), or a function v (n, r) -> A v.
    truncation : SurvivalRule, optional
        A rule from `rtgp.truncation`. By default `ResidualDriven()`.
    preconditioner : PivotedCholesky, optional
        Its log-determinant is computed exactly; only the rest is estimated. By default none.
    generator : torch.Generator, optional
        The source of random numbers. By default torch's own generator.
    probes : int
        The number of random vectors. The standard error falls as one over its square root.
    size : int, optional
        The number of rows n. Needed where A is a function.
    dtype : torch.dtype, optional
        Where A is a function. By default torch's default dtype.
    device : torch.device or str
        Where A is a function.
    tolerance : float, optional
        Error ratio at which a column has converged. By default 1e-4 in float32 and 1e-8 in float64.
    return_error : bool
        Whether to return the standard error too. Each probe then has its own truncation, so that their scatter tells
        the whole error. The run is as long as the longest of them.

    Returns
    -------
    Tensor or float, or a pair of them
        The estimate, differentiable where A is; a float where A is of NumPy or SciPy. With `return_error`, its standard
        error too.

    Examples
    --------
    >>> import torch, rtgp
    >>> A = torch.diag(torch.full((20,), 3.0, dtype=torch.float64))
    >>> value = rtgp.logdet(A, generator=torch.Generator().manual_seed(0))
    >>> bool(abs(value - 20 * torch.log(torch.tensor(3.0))) < 1.0)
    True

    A sparse matrix of SciPy, with a standard error:

    >>> import scipy.sparse
    >>> sparse = scipy.sparse.diags([1.0, 2.0, 4.0])
    >>> value, error = rtgp.logdet(sparse, generator=torch.Generator().manual_seed(0), return_error=True)
    >>> round(value, 3)  # random signs are exact for a diagonal matrix
    2.079
    """
    A = from_outside(given := A)
    as_numpy = A is not given
    matrix = _Matrix.read(A, size, dtype or torch.get_default_dtype(), torch.device(device))
    if isinstance(probes, bool) or not isinstance(probes, int) or probes < 1:
        raise SettingError(f"The 'probes' parameter of logdet must be a positive integer. Got {probes!r} instead.")
    if return_error and probes < 2:
        raise SettingError("A standard error needs at least 2 probes, whose scatter tells it. Got probes=1.")
    if preconditioner is not None and not isinstance(preconditioner, PivotedCholesky):
        raise InputError(
            "The preconditioner of logdet must be a PivotedCholesky or None: its determinant is needed. "
            f"Got {type(preconditioner).__name__} instead."
        )
    conditioner = _preconditioner(matrix, preconditioner, generator)
    drawn = draw_probes("preconditioner", matrix.size, probes, conditioner, generator, matrix.dtype, matrix.device)
    rule = ResidualDriven() if truncation is None else truncation
    draws = probes if return_error else 1
    outputs = [Output(k, k if return_error else 0) for k in range(probes)]
    result = _run(matrix, drawn.whitened, rule, outputs, draws, conditioner, generator, tolerance)
    # A draw for each probe, or one for all: (J, p) or (J, 1). Given the probes, the draws are independent.
    found = (result.weights * log_det_series(result, slice(0, probes))).sum(0) + conditioner.logdet()  # (p,)
    value = found.mean().to(matrix.device, matrix.dtype)
    u, v = trace_vectors(drawn, result.solutions)
    slope = (u * matrix.product(v)).sum()  # E[sum u^T dA v] = tr(A^-1 dA)
    estimate = value + (slope - slope.detach())
    if not return_error:
        return float(estimate) if as_numpy else estimate
    error = found.std().to(value) / math.sqrt(probes)
    return (float(estimate), float(error)) if as_numpy else (estimate, error)


def _checked_draws(draws: object, return_error: bool) -> int:
    if draws is None:
        return DRAWS_FOR_AN_ERROR if return_error else 1
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise SettingError(f"The 'draws' parameter of solve must be a positive integer. Got {draws!r} instead.")
    if return_error and draws < 2:
        raise SettingError("A standard error needs at least 2 draws, whose scatter tells it. Got draws=1.")
    return draws


def _as_given(tensor: Tensor, as_numpy: bool) -> Any:
    return tensor.detach().cpu().numpy() if as_numpy else tensor


@dataclass(frozen=True)
class _Matrix:
    """All kinds of matrices seen as one."""

    size: int
    dtype: torch.dtype
    device: torch.device
    product: Product  # differentiable where the matrix is
    matrix: Any  # the tensor, linear_operator or sparse matrix, whose rows can be read; None for products only

    @staticmethod
    def read(A: Any, size: int | None, dtype: torch.dtype, device: torch.device) -> _Matrix:
        if isinstance(A, Outside):
            if A.has_rows:
                _check_symmetric(*A.largest(), A.dtype)
            matrix = A if A.has_rows else None
            return _Matrix(A.size, A.dtype, torch.device("cpu"), A.product, matrix)
        if isinstance(A, (Tensor, LinearOperator)):
            if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
                raise InputError(f"Expected a square matrix, (n, n). Got shape {tuple(A.shape)}: pass one at a time.")
            size, dtype, device, product = A.shape[0], A.dtype, torch.device(A.device), lambda v: A @ v
        elif not callable(A):
            raise InputError(
                "Expected a tensor, an array, a sparse matrix, a linear operator or a function v -> A v. "
                f"Got {type(A).__name__}."
            )
        else:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InputError(f"A product function does not tell its size: pass size=n. Got size={size!r}.")
            product = _checked_product(A)
        if dtype not in WORKING_PRECISION:
            raise InputError(f"Expected a matrix in torch.float32 or torch.float64. Got {dtype}: convert it first.")
        if isinstance(A, Tensor):
            _check_entries(A.detach())
        return _Matrix(size, dtype, device, product, A if isinstance(A, (Tensor, LinearOperator)) else None)

    def detached_product(self, v: Tensor) -> Tensor:
        with torch.no_grad():
            return self.product(v)

    def rows(self, index: Tensor) -> Tensor:
        if isinstance(self.matrix, Outside):
            return self.matrix.rows(index)
        if isinstance(self.matrix, Tensor):
            return self.matrix.detach()[index].double()
        # Indexing is slow, or warns, for many kinds of linear_operator; a product with unit vectors serves all.
        units = torch.zeros(self.size, len(index), dtype=self.dtype, device=self.device)
        units[index, torch.arange(len(index), device=self.device)] = 1.0
        return self.detached_product(units).T.double()

    def diagonal(self) -> Tensor:
        diagonal: Tensor = self.matrix.diagonal()
        return diagonal.detach().double()


def _check_entries(A: Tensor) -> None:
    if not bool(torch.isfinite(A).all()):
        raise InputError(_NOT_FINITE)
    _check_symmetric(float(A.abs().max()), float((A - A.mT).abs().max()), A.dtype)


def _check_symmetric(largest: float, asymmetry: float, dtype: torch.dtype) -> None:
    """Conjugate gradients on another matrix return something plausible and wrong."""
    if math.isnan(largest):
        raise InputError(_NOT_FINITE)
    if asymmetry > SYMMETRY[dtype] * largest:
        raise InputError(
            f"Expected a symmetric matrix. Got entries that differ from their mirror image by up to {asymmetry:.1e}: "
            "pass (A + A.mT) / 2 (of NumPy or SciPy: A.T) if that is rounding."
        )


def _checked_product(function: Product) -> Product:
    def product(v: Tensor) -> Tensor:
        result = function(v)
        if not isinstance(result, Tensor) or result.shape != v.shape or result.dtype != v.dtype:
            came = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise InputError(
                f"Expected a product function (n, r) -> (n, r). Given {v.dtype} {tuple(v.shape)}, it returned {came}."
            )
        return result

    return product


def _run(
    matrix: _Matrix,
    residual: Tensor,  # whitened
    rule: SurvivalRule,
    outputs: list[Output],
    draws: int,
    preconditioner: Whitening,
    generator: torch.Generator | None,
    tolerance: float | None,
) -> CGResult:
    weighting = russian_roulette(rule, draws, generator)
    weighting.require_support(matrix.size)
    # Rounding makes CG need more than n steps; a draw that survives that long must not fail where it could go on.
    limit = 1000 + 20 * matrix.size
    return conjugate_gradients(
        matrix.detached_product, residual, weighting, outputs, preconditioner, tolerance=tolerance, max_iterations=limit
    )


class _ImplicitSolve(torch.autograd.Function):
    """Returns the estimate; backward solves once more, with a truncation of its own."""

    @staticmethod
    def forward(ctx: Any, product: Tensor, b: Tensor, estimate: Tensor, solver: Product) -> Tensor:
        ctx.solver = solver
        return estimate.clone()

    @staticmethod
    @once_differentiable  # a second derivative would need a third, independent solve
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        adjoint = ctx.solver(upstream[0])
        return -adjoint, adjoint, None, None


class _FunctionPreconditioner:
    """A user's function r -> P^-1 r: residuals stay in the original coordinates, and their squares are r^T P^-1 r."""

    def __init__(self, function: Product) -> None:
        self._function = _checked_product(function)

    def whiten(self, v: Tensor) -> Tensor:
        return v.clone()

    def conditioned(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        r = residual
        with torch.no_grad():
            solved = self._function(r)
        squares = (r * solved).sum(0, dtype=torch.float64)
        # Such a column would look solved, and its series would end unnoticed.
        if not bool(((squares > 0) | (r == 0).all(0)).all()):
            raise NotPositiveDefiniteError(
                "Expected a preconditioner r -> P^-1 r with P symmetric positive definite. "
                f"Got r^T P^-1 r = {float(squares.min()):.1e}: check its sign and that it returns no NaN."
            )
        return solved.clone(), squares


def _preconditioner(
    matrix: _Matrix, wanted: PivotedCholesky | Product | None, generator: torch.Generator | None
) -> Any:
    if wanted is None:
        return Identity(matrix.size)
    if isinstance(wanted, PivotedCholesky):
        if matrix.matrix is None:
            raise InputError(
                "PivotedCholesky needs rows of the matrix, which a product function does not give. Pass A as a tensor "
                "or a linear_operator, or the preconditioner as a function r -> P^-1 r."
            )
        made: Scaled = low_rank_of_matrix(wanted, matrix.diagonal(), matrix.rows, matrix.dtype, generator)
        return made
    if callable(wanted):
        return _FunctionPreconditioner(wanted)
    raise InputError(
        "The 'preconditioner' parameter must be a PivotedCholesky, a function r -> P^-1 r, or None. "
        f"Got {type(wanted).__name__} instead."
    )
