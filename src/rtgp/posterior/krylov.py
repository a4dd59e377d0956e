"""Predictions by preconditioned conjugate gradients, to a tolerance that is checked.

The preconditioner P = L L^T + I comes from a pivoted Cholesky factorisation, so that L L^T <= S K S and I <= P <= A. A
residual r = b - A x then bounds the error of a quadratic form:

    b^T A^-1 b = b^T x + r^T x + r^T A^-1 r    with    0 <= r^T A^-1 r <= r^T P^-1 r.

A variance is the prior's less this: it is never too small, and too large by r^T P^-1 r at the most.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.errors import ConvergenceError
from rtgp.posterior.block_cg import Progress, block_cg
from rtgp.posterior.solver import Solution, columns_within
from rtgp.preconditioners import Identity, LowRank, PivotedCholesky, Preconditioner
from rtgp.preconditioners.build import build
from rtgp.preconditioners.nearest import coordinates
from rtgp.preconditioners.pivoted_cholesky import factor_of
from rtgp.preconditioners.policy import PolicySettings
from rtgp.preconditioners.shape import Shape
from rtgp.preconditioners.trial import TrialSettings, tried
from rtgp.solvers import WhitenedSystem

_ROUNDS = 4  # of refinement from the true residual, where rounding has parted it from the recurrence
_RIGHT_HAND_SIDES = 64  # the preconditioner serves the mean and many variances: its rank is sqrt(2 n 64)
_MARGIN = 0.1  # the mean is solved this much better than asked: its largest error, not only its norm, is then small
_PRECONDITIONER_BYTES = 2**30
# What is left of a variance below this fraction of the prior's is rounding.
_NOTHING = {torch.float32: 1e-6, torch.float64: 1e-13}


class KrylovSolver:
    """A^-1 b and b^T A^-1 b to a tolerance."""

    name = "cg"

    def __init__(self, system: WhitenedSystem, tolerance: float, generator: torch.Generator) -> None:
        self._system, self._tolerance = system, tolerance
        n = system.size
        # Four products with L in each iteration: from n / 8 columns on they cost more than they save.
        most = min(max(16, n // 8), max(8, _PRECONDITIONER_BYTES * system.group.size // (3 * 8 * n)))
        settings = PivotedCholesky(min(PivotedCholesky().rank_for(n, _RIGHT_HAND_SIDES), most))
        factor = factor_of(system, settings, _RIGHT_HAND_SIDES, generator)
        self._preconditioner: Preconditioner = (
            LowRank(factor, system.dtype, system.group, n) if factor.shape[1] else Identity(n)
        )
        self.rank = factor.shape[1]
        self._generator = generator
        self._cheapest: Preconditioner | None = None  # for solves; made with the first
        self.error = 0.0  # the largest bound of a variance's relative error so far
        self._limit = max(1000, n)

    def _for_means(self) -> Preconditioner:
        """Any P serves a solve whose residual is looked at: the one with the cheapest iterations. A variance needs the
        low rank, whose bound it states."""
        if self._cheapest is None:
            system, generator = self._system, self._generator
            candidates = [self._preconditioner]
            if coordinates(system.operator.form) is not None:  # neighbours are then cheap to find
                count = min(PolicySettings().choice.counts[0], max(1, system.size - 1))
                candidates.append(build(Shape(0, count), system, generator).preconditioner)
            trials = [tried(one, system, generator, TrialSettings()) for one in candidates]
            self._cheapest = min(zip(trials, candidates, strict=True), key=lambda pair: pair[0].iterations)[1]
        return self._cheapest

    def solve(self, rhs: Tensor) -> Solution:
        """Every column to |b - A x| <= tolerance |b|, aiming at a tenth of it."""
        wanted = rhs.double().square().sum(0) * self._tolerance**2

        def finished(at: Progress) -> Tensor:
            return at.residual.square().sum(0, dtype=torch.float64) <= wanted[at.index] * _MARGIN**2

        x, remainder, iterations = torch.zeros_like(rhs), rhs, 0
        for _ in range(_ROUNDS):
            step, count = block_cg(self._system.matmul, remainder, self._for_means(), finished, self._limit)
            x, iterations = x + step, iterations + count
            remainder = rhs - self._system.matmul(x)
            left = remainder.square().sum(0, dtype=torch.float64)
            if bool((left <= wanted).all()):
                ratio = (left / wanted.clamp_min(1e-300)).max().sqrt() * self._tolerance
                return Solution(x, iterations, float(ratio))
        raise self._stuck()

    def explained(self, b: Tensor, prior: Tensor) -> Tensor:
        return self._quadratic(b, prior)[1]

    def gram(self, b: Tensor, prior: Tensor) -> Tensor:
        n, m = b.shape
        x, result = torch.empty_like(b), b.new_empty(m, m)
        width = columns_within(n)
        pieces = [slice(s, s + width) for s in range(0, m, width)]
        for piece in pieces:
            x[:, piece] = self._quadratic(b[:, piece], prior[piece])[0]
        for piece in pieces:
            remainder = b[:, piece] - self._system.matmul(x[:, piece])
            # B^T X + X^T R = B^T A^-1 B - R^T A^-1 R, as for one column: the covariance stays positive semidefinite.
            result[:, piece] = b.T @ x[:, piece] + x.T @ remainder
        return (result + result.T) / 2

    def _quadratic(self, b: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """x near A^-1 b, and b^T A^-1 b (k,) with a variance prior - b^T A^-1 b right to the relative tolerance."""
        prior = prior.double()
        nothing = _NOTHING[b.dtype] * prior

        def small(bound: Tensor, left: Tensor, index: Tensor) -> Tensor:
            # The variance lies between left - bound and left.
            return bound <= torch.maximum(self._tolerance * (left - bound), nothing[index])

        x, remainder = torch.zeros_like(b), b
        explained = torch.zeros_like(prior)
        everything = torch.arange(b.shape[1], device=b.device)
        for _ in range(_ROUNDS):
            before = explained

            def finished(at: Progress, before: Tensor = before) -> Tensor:
                # Twice: the bound by recurrence and the one from the true residual differ by rounding.
                return small(2.0 * at.squares, (prior - before)[at.index] - at.gained, at.index)

            x = x + block_cg(self._system.matmul, remainder, self._preconditioner, finished, self._limit)[0]
            remainder = b - self._system.matmul(x)
            explained = (b.double() * x).sum(0) + (remainder.double() * x).sum(0)
            bound = self._preconditioner.solve(remainder)[1]
            left = prior - explained
            if bool(small(bound, left, everything).all()):
                self.error = max(self.error, float((bound / torch.maximum(left, nothing)).max()))
                return x, explained
        raise self._stuck()

    def _stuck(self) -> ConvergenceError:
        return ConvergenceError(
            f"Rounding in {self._system.dtype} keeps conjugate gradients from the tolerance of {self._tolerance:.1e}. "
            "Use method='cholesky', a larger tolerance, a larger noise, or float64 (model.double())."
        )
