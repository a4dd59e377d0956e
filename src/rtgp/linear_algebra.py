"""Unbiased solves and log-determinants for any symmetric positive definite matrix, Gaussian processes or not.

The same code as RR-CG: conjugate gradients as a series, truncated by Russian roulette. The matrix may be a tensor, a
`linear_operator` object or a function v (n, r) -> A v; where that is differentiable, so are the results, and their
gradients are unbiased too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from linear_operator import LinearOperator
from torch import Tensor
from torch.autograd.function import once_differentiable

from rtgp.errors import InputError, NotPositiveDefiniteError, SettingError
from rtgp.estimators import draw_probes, log_det, log_det_series, trace_vectors
from rtgp.preconditioners import Identity, PivotedCholesky
from rtgp.preconditioners.low_rank import Scaled, low_rank_of_matrix
from rtgp.solvers import CGResult, Output, Whitening, conjugate_gradients
from rtgp.solvers.cg import WORKING_PRECISION
from rtgp.truncation import ResidualDriven, SurvivalRule, russian_roulette

Product = Callable[[Tensor], Tensor]
SYMMETRY = {torch.float32: 1e-4, torch.float64: 1e-8}  # largest |A - A^T| over largest |A| taken for rounding


def solve(
    A: Any,
    b: Tensor,
    truncation: SurvivalRule | None = None,
    preconditioner: PivotedCholesky | Product | None = None,
    generator: torch.Generator | None = None,
    tolerance: float | None = None,
) -> Tensor:
    """An unbiased estimate of A^-1 b for b (n,) or (n, r), all columns with one truncation.

    A: a tensor, a linear_operator or a function v -> A v. truncation: a rule from rtgp.truncation, ResidualDriven() by
    default. preconditioner: settings, a function r -> P^-1 r, or None. For a loss that is linear in the result, the
    gradient with respect to A and b is unbiased: it comes from a second solve with a truncation of its own.
    """
    if not isinstance(b, Tensor) or b.ndim not in (1, 2):
        came = f"shape {tuple(b.shape)}" if isinstance(b, Tensor) else type(b).__name__
        raise InputError(f"Expected b as a tensor of shape (n,) or (n, r). Got {came} instead.")
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

    def solver(rhs: Tensor) -> Tensor:
        return _run(matrix, conditioner.whiten(rhs), rule, conditioner, generator, tolerance).solutions

    estimate = solver(columns.detach())
    # d(A^-1 b) = A^-1 (db - dA A^-1 b): the product carries the derivative of A, whatever A is.
    result: Tensor = _ImplicitSolve.apply(matrix.product(estimate), columns, estimate, solver)  # type: ignore[no-untyped-call]
    return result if b.ndim == 2 else result[:, 0]


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
) -> Tensor:
    """An unbiased estimate of log|A| from `probes` random vectors, differentiable where A is.

    For a function, give its `size` n (and its dtype and device, where they are not torch's default and the CPU).
    """
    matrix = _Matrix.read(A, size, dtype or torch.get_default_dtype(), torch.device(device))
    if isinstance(probes, bool) or not isinstance(probes, int) or probes < 1:
        raise SettingError(f"The 'probes' parameter of logdet must be a positive integer. Got {probes!r} instead.")
    if preconditioner is not None and not isinstance(preconditioner, PivotedCholesky):
        raise InputError(
            "The preconditioner of logdet must be a PivotedCholesky or None: its determinant is needed. "
            f"Got {type(preconditioner).__name__} instead."
        )
    conditioner = _preconditioner(matrix, preconditioner, generator)
    drawn = draw_probes("preconditioner", matrix.size, probes, conditioner, generator, matrix.dtype, matrix.device)
    rule = ResidualDriven() if truncation is None else truncation
    result = _run(matrix, drawn.whitened, rule, conditioner, generator, tolerance)
    value = (
        log_det(log_det_series(result, slice(0, probes)), result.weights[:, 0], conditioner.logdet())
        .mean()
        .to(matrix.device, matrix.dtype)
    )
    u, v = trace_vectors(drawn, result.solutions)
    slope = (u * matrix.product(v)).sum()  # E[sum u^T dA v] = tr(A^-1 dA)
    return value + (slope - slope.detach())


@dataclass(frozen=True)
class _Matrix:
    """The three kinds of matrices seen as one."""

    size: int
    dtype: torch.dtype
    device: torch.device
    product: Product  # differentiable where the matrix is
    matrix: Any  # the tensor or linear_operator; None for a function

    @staticmethod
    def read(A: Any, size: int | None, dtype: torch.dtype, device: torch.device) -> _Matrix:
        if isinstance(A, (Tensor, LinearOperator)):
            if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
                raise InputError(f"Expected a square matrix, (n, n). Got shape {tuple(A.shape)}: pass one at a time.")
            size, dtype, device, product = A.shape[0], A.dtype, torch.device(A.device), lambda v: A @ v
        elif not callable(A):
            raise InputError(f"Expected a tensor, a linear_operator or a function v -> A v. Got {type(A).__name__}.")
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
        raise InputError("Expected a finite matrix. Got NaN or infinity: check what computed it.")
    # Conjugate gradients on another matrix return something plausible and wrong.
    asymmetry = float((A - A.mT).abs().max())
    if asymmetry > SYMMETRY[A.dtype] * float(A.abs().max()):
        raise InputError(
            f"Expected a symmetric matrix. Got entries that differ from their mirror image by up to {asymmetry:.1e}: "
            "pass (A + A.mT) / 2 if that is rounding."
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
    preconditioner: Whitening,
    generator: torch.Generator | None,
    tolerance: float | None,
) -> CGResult:
    weighting = russian_roulette(rule, 1, generator)
    weighting.require_support(matrix.size)
    outputs = [Output(k, 0) for k in range(residual.shape[1])]
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
