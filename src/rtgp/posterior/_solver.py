"""What every family of posterior solvers offers, on A = S K S + I (see `rtgp._solvers.system`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Solution:
    """x with A x near the right-hand side."""

    x: Tensor  # (n, k)
    iterations: int
    residual: float  # the largest |b - A x| / |b| over the columns, computed from x


@dataclass(frozen=True)
class Quadratic:
    """x near A^-1 b, b^T A^-1 b for each column, and what is left of b: b - A x; None where that is rounding."""

    x: Tensor  # (n, k)
    explained: Tensor  # (k,) float64
    remainder: Tensor | None  # (n, k)


class VarianceSolver(Protocol):
    """b^T A^-1 b, what the data explain of the prior variance."""

    def explained(self, b: Tensor, prior: Tensor) -> Tensor:
        """b_i^T A^-1 b_i for the columns of b (n, k), float64; prior (k,): the variances they are taken from."""
        ...

    def gram(self, b: Tensor, prior: Tensor) -> Tensor:
        """B^T A^-1 B, (k, k), symmetric."""
        ...

    def quadratic(self, b: Tensor, prior: Tensor, fine: bool) -> Quadratic:
        """What `explained` gives, with the solution. fine: x itself is to be right, for a gradient is made of it."""
        ...


class Solver(VarianceSolver, Protocol):
    """A^-1 b as well."""

    def solve(self, rhs: Tensor, start: Tensor | None = None) -> Solution:
        """start: an x that is near already; nothing to a solver that is direct."""
        ...


# Numbers of n x k arrays: right-hand side, solution, residual, direction, product, preconditioned residual, and what
# evaluating a kernel block takes.
_ARRAYS = 10
_BYTES = 512 * 2**20
# Kernel blocks of 8 MiB stay near the processor: 2.5 times as fast as 50 MiB (n = 5,000). Fewer than 128 columns at
# once would slow the products with them.
_BLOCK = 2**20
_COLUMNS = (128, 2048)


def columns_within(n: int, budget: int = _BYTES) -> int:
    """How many right-hand sides of length n are solved for at once. So memory does not depend on how many there are."""
    least, most = _COLUMNS
    return max(1, min(most, max(least, _BLOCK // n), budget // (8 * _ARRAYS * n)))
