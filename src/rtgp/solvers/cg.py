"""Preconditioned conjugate gradients as a series, one run for many right-hand sides and many truncations.

A^-1 B = sum_j gamma_j d_j (Eq. 3 of the paper). What is returned are weighted sums of those increments, the weights
coming from `rtgp.truncation`: plain CG, Russian roulette with any survival rule, or a run to the end differ in that
argument alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp.errors import ConvergenceError, NotPositiveDefiniteError
from rtgp.solvers.basis import KrylovBasis
from rtgp.solvers.preconditioner import Preconditioner
from rtgp.solvers.result import CGResult, CGStatus
from rtgp.truncation import Weighting

# A column whose ratio sqrt(r^T P^-1 r / reference) is below this has reached the working precision: its series ends.
WORKING_PRECISION = {torch.float32: 1e-4, torch.float64: 1e-8}


@dataclass(frozen=True)
class Output:
    """One weighted sum to return: of which right-hand side, with the weights of which draw (None: all ones)."""

    column: int
    draw: int | None


def conjugate_gradients(
    matmul: Callable[[Tensor], Tensor],
    rhs: Tensor,  # (n, r)
    weighting: Weighting,
    outputs: Sequence[Output],
    preconditioner: Preconditioner,
    *,
    groups: Sequence[slice] | None = None,
    reference: Mapping[int, float] | None = None,
    tolerance: float | None = None,
    keep_basis: slice | None = None,
    max_iterations: int | None = None,
) -> CGResult:
    """Run until every draw of `weighting` has ended or every column has reached the working precision.

    reference: what r^T P^-1 r of a column is measured against; its start by default.
    groups: the error proxy is the largest, over groups of columns, of the root mean ratio in the group.
    keep_basis: columns whose Lanczos vectors are to be returned. All columns are then kept orthogonal to their earlier
    residuals, so that a run ends after at most n iterations however ill-conditioned the matrix.
    """
    n, r = rhs.shape
    groups = [slice(0, r)] if groups is None else groups
    limit = max(1000, n) if max_iterations is None else max_iterations
    precision = WORKING_PRECISION[rhs.dtype] if tolerance is None else tolerance
    columns = torch.tensor([output.column for output in outputs], device=rhs.device)

    residual = rhs.clone()
    conditioned, squares = preconditioner.solve(residual)  # P^-1 r and r^T P^-1 r
    scale = squares.clone()
    for column, value in (reference or {}).items():
        scale[column] = value
    scale = torch.where(scale > 0, scale, 1.0)
    direction = conditioned.clone()
    solutions = rhs.new_zeros(n, len(outputs))
    active = squares / scale > precision**2
    proxy = _proxy(squares / scale, groups)
    gammas: list[Tensor] = []
    betas: list[Tensor] = []
    history: list[Tensor] = [squares]
    weights_used: list[tuple[float, ...]] = []
    basis = KrylovBasis(n, r, rhs) if keep_basis is not None else None
    status = CGStatus.CONVERGED

    while bool(active.any()):
        weights = weighting.next(proxy)
        if weights is None:
            status = CGStatus.TRUNCATED
            break
        if len(gammas) == limit:
            raise ConvergenceError(
                f"Conjugate gradients did not reach the working precision in {limit} iterations (error ratio "
                f"{proxy:.1e}, wanted {precision:.1e}). The system is too ill-conditioned: use a larger noise, a "
                f"preconditioner of higher rank{'' if rhs.dtype == torch.float64 else ', or float64'}."
            )
        if basis is not None:
            basis.append(residual, conditioned, squares)
        product = matmul(direction)
        curvature = (direction * product).sum(0, dtype=torch.float64)  # d^T A d
        if not bool((curvature[active] > 0).all()):
            raise NotPositiveDefiniteError(
                f"The matrix is not positive definite in {rhs.dtype} (iteration {len(gammas) + 1} of conjugate "
                "gradients met a direction of no positive curvature). Use float64, or add noise or jitter to the "
                "diagonal."
            )
        gamma = torch.where(active, squares / curvature, 0.0)
        per_draw = torch.tensor([1.0 if o.draw is None else weights[o.draw] for o in outputs], dtype=torch.float64)
        step = gamma[columns] * per_draw.to(gamma.device)
        solutions.addcmul_(direction[:, columns], step.to(rhs.dtype))
        residual.addcmul_(product, gamma.to(rhs.dtype), value=-1.0)
        if basis is not None:
            basis.orthogonalise(residual)
        conditioned, new_squares = preconditioner.solve(residual)
        beta = torch.where(active, new_squares / squares, 0.0)
        squares = torch.where(active, new_squares, squares)
        active = active & (squares / scale > precision**2)
        beta = torch.where(active, beta, 0.0)
        # A frozen column contributes no further increment: its direction is zero from here on.
        direction = (direction * beta.to(rhs.dtype)).add_(conditioned).mul_(active.to(rhs.dtype))
        proxy = _proxy(squares / scale, groups)
        gammas.append(gamma)
        betas.append(beta)
        history.append(squares)
        weights_used.append(weights)

    empty = torch.zeros(0, r, dtype=torch.float64, device=rhs.device)
    return CGResult(
        solutions=solutions,
        status=status,
        iterations=len(gammas),
        gamma=torch.stack(gammas) if gammas else empty,
        beta=torch.stack(betas) if betas else empty,
        squares=torch.stack(history),
        weights=torch.tensor(weights_used, dtype=torch.float64, device=rhs.device).reshape(
            len(gammas), weighting.draws
        ),
        residual=proxy,
        frozen=int((~active).sum()),
        truncations=tuple(weighting.truncations),
        basis=basis.lanczos_vectors(keep_basis) if basis is not None and keep_basis is not None else None,
    )


def _proxy(ratios: Tensor, groups: Sequence[slice]) -> float:
    return float(torch.stack([ratios[group].mean() for group in groups]).max().sqrt())
