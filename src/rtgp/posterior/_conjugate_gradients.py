"""Predictions by preconditioned conjugate gradients, to a tolerance that is checked.

A residual r = b - A x bounds the error of a quadratic form:

    b^T A^-1 b = b^T x + r^T x + r^T A^-1 r    with    0 <= r^T A^-1 r <= r^T r,    since I <= A.

A variance is the prior's less this: it is never too small, and too large by r^T r at the most. Where the preconditioner
P = L L^T + I comes from a pivoted Cholesky factorisation alone, L L^T <= S K S and I <= P <= A: then the error is
r^T P^-1 r at the most, which is less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rtgp._preconditioners import Automatic, Identity, LowRank
from rtgp._preconditioners.policy import Policy
from rtgp._preconditioners.policy_settings import PolicySettings
from rtgp._solvers import NoiseUnits
from rtgp.errors import ConvergenceError
from rtgp.posterior._block_cg import Progress, block_cg
from rtgp.posterior._solver import Quadratic, Solution, columns_within


@dataclass(frozen=True)
class SolveSettings:
    """How a prediction's systems are solved. Chosen, not fitted.

    Attributes
    ----------
    rounds : int
        Rounds of refinement from the true residual, where rounding has parted it from the recurrence.
    right_hand_sides : int
        Right-hand sides that the preconditioner serves, the mean and many variances. Its rank is sqrt(2 n 64).
    margin : float
        The mean is solved this much better than asked: its largest error, not only its norm, is then small.
    nothing, nothing_in_float64 : float
        Part of the prior's variance below which what is left is rounding.
    most_iterations : int | None
        The longest run; None: n, and at least 1000.
    policy : PolicySettings
        How the preconditioner is kept. The memory of its factor does not grow with that of the machine.
    """

    rounds: int = 4
    right_hand_sides: int = 64
    margin: float = 0.1
    nothing: float = 1e-6
    nothing_in_float64: float = 1e-13
    most_iterations: int | None = None
    policy: PolicySettings = field(default_factory=lambda: PolicySettings(most_bytes=2**31))


DEFAULT = SolveSettings()


class KrylovSolver:
    """A^-1 b and b^T A^-1 b to a tolerance."""

    name = "cg"

    def __init__(
        self,
        system: NoiseUnits,
        tolerance: float,
        generator: torch.Generator,
        settings: SolveSettings = DEFAULT,
    ) -> None:
        self._system, self._tolerance, self._settings = system, tolerance, settings
        policy = Policy(Automatic(), None, settings.right_hand_sides, settings=settings.policy)
        self._preconditioner, _ = policy.preconditioner(system, generator, keep=False)
        self._below = isinstance(self._preconditioner, (LowRank, Identity))  # whether P <= A
        self.rank, self.neighbours = self._preconditioner.rank, self._preconditioner.neighbours
        self.reason = policy.reason
        self.error = 0.0  # the largest bound of a variance's relative error so far
        self._limit = max(1000, system.size) if settings.most_iterations is None else settings.most_iterations
        wide = system.dtype == torch.float64
        self._nothing = settings.nothing_in_float64 if wide else settings.nothing

    def _remainder(self, b: Tensor, x: Tensor) -> Tensor:
        """b - A x; in float32 with sums in float64, for it is a small difference."""
        return self._system.remainder(b, x) if b.dtype == torch.float32 else b - self._system.matmul(x)

    def _bound(self, residual: Tensor, squares: Tensor) -> Tensor:
        """An upper bound of r^T A^-1 r for residuals (n, k) with squares r^T P^-1 r (k,)."""
        return squares if self._below else residual.square().sum(0, dtype=torch.float64)

    def solve(self, rhs: Tensor, start: Tensor | None = None) -> Solution:
        """Every column to |b - A x| <= tolerance |b|, aiming at a tenth of it. start: an x that is near already."""
        wanted = rhs.double().square().sum(0) * self._tolerance**2

        def finished(at: Progress) -> Tensor:
            return at.residual.square().sum(0, dtype=torch.float64) <= wanted[at.index] * self._settings.margin**2

        x, remainder, iterations = torch.zeros_like(rhs), rhs, 0
        if start is not None:
            x, remainder = start, self._remainder(rhs, start)
        for _ in range(self._settings.rounds):
            step, count = block_cg(self._system.matmul, remainder, self._preconditioner, finished, self._limit)
            x, iterations = x + step, iterations + count
            remainder = self._remainder(rhs, x)
            left = remainder.square().sum(0, dtype=torch.float64)
            if bool((left <= wanted).all()):
                ratio = (left / wanted.clamp_min(1e-300)).max().sqrt() * self._tolerance
                return Solution(x, iterations, float(ratio))
        raise self._stuck()

    def explained(self, b: Tensor, prior: Tensor) -> Tensor:
        return self._quadratic(b, prior, self._tolerance).explained

    def quadratic(self, b: Tensor, prior: Tensor, fine: bool) -> Quadratic:
        # The error of b^T x + r^T x is a square of that of x: what a gradient is made of needs the square of the
        # tolerance to be right to the tolerance itself.
        return self._quadratic(b, prior, self._tolerance**2 if fine else self._tolerance)

    def gram(self, b: Tensor, prior: Tensor) -> Tensor:
        n, m = b.shape
        x, result = torch.empty_like(b), b.new_empty(m, m)
        width = columns_within(n)
        pieces = [slice(s, s + width) for s in range(0, m, width)]
        for piece in pieces:
            x[:, piece] = self._quadratic(b[:, piece], prior[piece], self._tolerance).x
        for piece in pieces:
            remainder = b[:, piece] - self._system.matmul(x[:, piece])
            # B^T X + X^T R = B^T A^-1 B - R^T A^-1 R, as for one column: the covariance stays positive semidefinite.
            result[:, piece] = b.T @ x[:, piece] + x.T @ remainder
        return (result + result.T) / 2

    def _quadratic(self, b: Tensor, prior: Tensor, tolerance: float) -> Quadratic:
        """With a variance prior - b^T A^-1 b that is right to a relative tolerance."""
        prior = prior.double()
        nothing = self._nothing * prior

        def small(bound: Tensor, left: Tensor, index: Tensor) -> Tensor:
            # The variance lies between left - bound and left.
            return bound <= torch.maximum(tolerance * (left - bound), nothing[index])

        x, remainder = torch.zeros_like(b), b
        explained = torch.zeros_like(prior)
        everything = torch.arange(b.shape[1], device=b.device)
        for _ in range(self._settings.rounds):
            before = explained

            def finished(at: Progress, before: Tensor = before) -> Tensor:
                # Twice: the bound by recurrence and the one from the true residual differ by rounding.
                bound = 2.0 * self._bound(at.residual, at.squares)
                return small(bound, (prior - before)[at.index] - at.gained, at.index)

            x = x + block_cg(self._system.matmul, remainder, self._preconditioner, finished, self._limit)[0]
            remainder = self._remainder(b, x)
            explained = (b.double() * x).sum(0) + (remainder.double() * x).sum(0)
            bound = self._bound(remainder, self._preconditioner.solve(remainder)[1])
            left = prior - explained
            if bool(small(bound, left, everything).all()):
                self.error = max(self.error, float((bound / torch.maximum(left, nothing)).max()))
                return Quadratic(x, explained, remainder)
        raise self._stuck()

    def _stuck(self) -> ConvergenceError:
        return ConvergenceError(
            f"Rounding in {self._system.dtype} keeps conjugate gradients from the tolerance of {self._tolerance:.1e}. "
            "Use method='cholesky', a larger tolerance, a larger noise, or float64 (model.double())."
        )
