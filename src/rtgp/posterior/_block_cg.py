"""Conjugate gradients on many right-hand sides, each until a rule of the caller's says that it is finished.

`rtgp._solvers.cg` follows a series, whose increments may be weighted; here only the sum counts, columns that are
finished leave the block, and the rule may look at what the run has shown so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._preconditioners import Preconditioner
from rtgp.errors import ConvergenceError, NotPositiveDefiniteError


@dataclass
class Progress:
    """The columns still in the block."""

    index: Tensor  # (k,): which columns of the right-hand side they are
    residual: Tensor  # (n, k): b - A x, by recurrence
    squares: Tensor  # (k,) float64: r^T P^-1 r
    gained: Tensor  # (k,) float64: b^T x; grows towards b^T A^-1 b (Hestenes and Stiefel)


def block_cg(
    matmul: Callable[[Tensor], Tensor],
    rhs: Tensor,  # (n, k)
    preconditioner: Preconditioner,
    finished: Callable[[Progress], Tensor],  # -> (k,) bool; a column with squares = 0 must be finished
    limit: int,
) -> tuple[Tensor, int]:
    """x with A x near rhs, and the iterations of the slowest column."""
    solution = torch.zeros_like(rhs)
    conditioned, squares = preconditioner.solve(rhs)
    index = torch.arange(rhs.shape[1], device=rhs.device)
    at = Progress(index, rhs.clone(), squares, torch.zeros_like(squares))
    x, direction = torch.zeros_like(rhs), conditioned.clone()
    iterations = 0
    while True:
        done = finished(at)
        if bool(done.any()):
            solution[:, at.index[done]] = x[:, done]
            keep = ~done
            at = Progress(at.index[keep], at.residual[:, keep], at.squares[keep], at.gained[keep])
            x, direction = x[:, keep], direction[:, keep]
        if at.index.numel() == 0:
            return solution, iterations
        if iterations == limit:
            raise ConvergenceError(
                f"Conjugate gradients did not reach the tolerance in {limit} iterations ({at.index.numel()} of "
                f"{rhs.shape[1]} right-hand sides left). The system is too ill-conditioned: use method='cholesky', a "
                "larger tolerance, or a larger noise."
            )
        product = matmul(direction)
        curvature = (direction * product).sum(0, dtype=torch.float64)  # d^T A d
        if not bool((curvature > 0).all()):
            raise NotPositiveDefiniteError(
                f"The covariance matrix is not positive definite in {rhs.dtype} (iteration {iterations + 1} of "
                "conjugate gradients met a direction of no positive curvature). Raise the lower bound of the noise."
            )
        gamma = at.squares / curvature
        x.addcmul_(direction, gamma.to(rhs.dtype))
        at.residual.addcmul_(product, gamma.to(rhs.dtype), value=-1.0)
        at.gained += gamma * at.squares
        conditioned, squares = preconditioner.solve(at.residual)
        direction.mul_((squares / at.squares).to(rhs.dtype)).add_(conditioned)
        at.squares = squares
        iterations += 1
