"""What a run of conjugate gradients returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor


class CGStatus(Enum):
    """Why the run ended."""

    CONVERGED = "converged"  # every column reached the working precision: the series has ended
    TRUNCATED = "truncated"  # the truncation's last draw ended


@dataclass(frozen=True)
class CGResult:
    """Weighted sums of the increments of A^-1 B, and everything the run showed on the way.

    Step lengths and ratios define the Lanczos tridiagonal matrix of B = F^-1 A F^-T for each column. They, the squares
    and the weights are on the CPU.
    """

    solutions: Tensor  # (n, outputs): sum_j w_j gamma_j d_j
    status: CGStatus
    iterations: int
    gamma: Tensor  # (J, r) float64: step lengths, 0 once a column is frozen
    beta: Tensor  # (J, r) float64: ratios of successive r^T P^-1 r, 0 once a column is frozen
    squares: Tensor  # (J + 1, r) float64: r^T P^-1 r
    weights: Tensor  # (J, draws) float64
    residual: float  # error proxy at the end
    frozen: int  # columns that reached the working precision
    truncations: tuple[int, ...]
    basis: Tensor | None = None  # (J, n, k): F^-T q_j for the Lanczos vectors q_j of the columns asked for
