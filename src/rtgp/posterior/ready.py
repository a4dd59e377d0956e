"""Everything that predictions need and that does not depend on the new points, for a model as it is now."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rtgp.errors import ConvergenceError, NotPositiveDefiniteError
from rtgp.memory import is_out_of_memory
from rtgp.operators import make_from_form
from rtgp.posterior.exact import CholeskySolver
from rtgp.posterior.krylov import KrylovSolver
from rtgp.posterior.lanczos import LanczosSolver
from rtgp.posterior.prior import Prior
from rtgp.posterior.settings import PosteriorReport, PosteriorSettings
from rtgp.posterior.snapshot import Snapshot
from rtgp.posterior.solver import Solution, VarianceSolver, columns_within
from rtgp.solvers import WhitenedSystem

# Below this, variances in float32 were within 5e-4 of those in float64 (at 1e-3, up to 4e-3). Gradients, which are sums
# over the data, bear more (rtgp.solvers.system.ROUNDING_LIMIT); a variance is a small difference of large numbers.
ROUNDING_LIMIT = 1e-4
_CHECKED = 16  # training points at which a Lanczos variance is compared with the exact one


@dataclass
class Ready:
    """Made by `make_ready`; of the model as it was at `snapshot`."""

    settings: PosteriorSettings
    snapshot: Snapshot
    prior: Prior
    reason: str
    system: WhitenedSystem
    solver: CholeskySolver | KrylovSolver
    solution: Solution  # of the mean
    seconds: float
    weights: Tensor = field(init=False)  # (n, 1): (K + D)^-1 (y - mean)
    _lanczos: LanczosSolver | None = None
    _excess: float = 0.0

    def __post_init__(self) -> None:
        self.weights = self.system.whiten(self.solution.x)

    def variance_solver(self) -> VarianceSolver:
        if self.settings.variance != "lanczos":
            return self.solver
        if self._lanczos is None:
            rank = self.settings.lanczos_rank(self.system.size)
            self._lanczos = LanczosSolver(self.system, rank, _generator(self.settings))
            self._excess = _excess(self.system, self.solver, self._lanczos)
        return self._lanczos

    def solve(self, rhs: Tensor) -> Tensor:
        """(K + D)^-1 rhs for rhs (n, k), a bounded number of columns at once."""
        whitened = self.system.whiten(rhs).to(self.system.dtype)
        pieces = torch.split(whitened, columns_within(self.system.size), dim=1)
        return self.system.whiten(torch.cat([self.solver.solve(piece).x for piece in pieces], dim=1))

    def report(self) -> PosteriorReport:
        lanczos, rank = self.settings.variance == "lanczos", self.settings.lanczos_rank(self.system.size)
        return PosteriorReport(
            method=self.solver.name,
            reason=self.reason,
            iterations=self.solution.iterations,
            residual=self.solution.residual,
            tolerance=self.settings.tolerance,
            seconds=self.seconds,
            dtype=self.system.dtype,
            rank=self.solver.rank,
            variance=f"lanczos({rank})" if lanczos else "exact",
            variance_error=self._excess if lanczos else self.solver.error,
        )


def make_ready(model: Any, likelihood: Any, settings: PosteriorSettings, allow_float32: bool) -> Ready:
    """Within `evaluating(model)`. A float32 model is worked with in float64 where float32 would be too coarse."""
    begin = time.perf_counter()
    snapshot = Snapshot(model, likelihood)
    prior = Prior.read(model, likelihood)
    if prior.form.dtype != torch.float64:
        rounding = WhitenedSystem(make_from_form(prior.form, "tiled"), prior.noise).limits().rounding
        if allow_float32 and rounding <= ROUNDING_LIMIT:
            try:
                return _solve(settings, snapshot, prior, begin)
            except (ConvergenceError, NotPositiveDefiniteError):
                pass  # float32 was not enough after all
        prior = prior.in_float64(likelihood)
    return _solve(settings, snapshot, prior, begin)


def _solve(settings: PosteriorSettings, snapshot: Snapshot, prior: Prior, begin: float) -> Ready:
    method, reason = settings.choose(prior.form.size, prior.form.device, prior.form.dtype)
    solver: CholeskySolver | KrylovSolver | None = None
    if method == "cholesky":
        system = WhitenedSystem(make_from_form(prior.form, "tiled"), prior.noise)
        try:
            solver = CholeskySolver(system)
        except (MemoryError, RuntimeError) as error:
            if settings.method != "auto" or not is_out_of_memory(error):
                raise
            reason = f"n = {prior.form.size:,}, and the memory that Cholesky needs was not to be had"
    if solver is None:
        system = WhitenedSystem(make_from_form(prior.form, settings.operator), prior.noise)
        solver = KrylovSolver(system, settings.tolerance, _generator(settings))
    solution = solver.solve(system.whiten(prior.residual[:, None].to(system.dtype)))
    return Ready(settings, snapshot, prior, reason, system, solver, solution, time.perf_counter() - begin)


def _generator(settings: PosteriorSettings) -> torch.Generator:
    return torch.Generator().manual_seed(settings.seed)


def _excess(system: WhitenedSystem, exact: VarianceSolver, lanczos: LanczosSolver) -> float:
    """By what fraction Lanczos variances exceed the exact ones, at the most, at some training points."""
    n = system.size
    index = torch.linspace(0, n - 1, min(n, _CHECKED), device=system.device).long()
    b = system.whiten(system.operator.rows(index).T.contiguous())
    prior = system.operator.diagonal()[index].double()
    least = 1e-12 * float(prior.max())
    true = (prior - exact.explained(b, prior)).clamp_min(least)
    return float(((prior - lanczos.explained(b, prior)) / true).max()) - 1.0
