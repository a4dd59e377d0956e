"""Everything that predictions need and that does not depend on the new points, for a model as it is now."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._memory import is_out_of_memory
from rtgp._objectives.reading import tensors_of
from rtgp._precision import Precision, decide_after, decide_prediction, felt_of_entries, limits_of
from rtgp._preconditioners.amplification import reach_of
from rtgp._solvers import NoiseUnits
from rtgp.errors import RTGPError
from rtgp.operators import CrossOperator, make_from_form
from rtgp.posterior._cholesky import CholeskySolver
from rtgp.posterior._conjugate_gradients import KrylovSolver
from rtgp.posterior._lanczos import LanczosSolver
from rtgp.posterior._prior import Prior
from rtgp.posterior._settings import PosteriorReport, PosteriorSettings
from rtgp.posterior._solver import Solution, VarianceSolver, columns_within


@dataclass
class PredictionCache:
    """What predictions need, of the model as it was at `snapshot`. `make_cache` makes it."""

    settings: PosteriorSettings
    snapshot: Snapshot
    prior: Prior
    reason: str
    system: NoiseUnits
    solver: CholeskySolver | KrylovSolver
    solution: Solution  # of the mean
    seconds: float
    weights: Tensor = field(init=False)  # (n, t): (K + D)^-1 (y - mean)
    _lanczos: LanczosSolver | None = None
    _excess: float = 0.0
    _near: tuple[int, float] = (0, 0.0)  # neighbours that variances were computed from, and their largest excess

    def __post_init__(self) -> None:
        self.weights = self.system.scaled(self.solution.x)

    def cross(self, joint: KernelForm) -> CrossOperator:
        """K(new, training) of the form of the training points followed by new ones."""
        return self.system.operator.cross_of(joint)

    def near_used(self, count: int, excess: float) -> None:
        """Note that variances came from `count` neighbours each, and exceeded exact ones by `excess` at most."""
        self._near = max(count, self._near[0]), max(excess, self._near[1])

    def variance_solver(self) -> VarianceSolver:
        if self.settings.variance != "lanczos":
            return self.solver
        if self._lanczos is None:
            rank = self.settings.lanczos_rank(self.system.size)
            self._lanczos = LanczosSolver(self.system, rank, _generator(self.settings), self.settings.internal.lanczos)
            self._excess = _excess(self.system, self.solver, self._lanczos, self.settings.internal.checked)
        return self._lanczos

    def solve(self, rhs: Tensor) -> Tensor:
        """(K + D)^-1 rhs for rhs (n, k), a bounded number of columns at once."""
        scaled = self.system.scaled(rhs).to(self.system.dtype)
        pieces = torch.split(scaled, columns_within(self.system.size), dim=1)
        return self.system.scaled(torch.cat([self.solver.solve(piece).x for piece in pieces], dim=1))

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
            variance=f"lanczos({rank})" if lanczos else f"neighbours({self._near[0]})" if self._near[0] else "exact",
            variance_error=self._excess if lanczos else max(self.solver.error, self._near[1]),
        )


def make_cache(
    model: Any,
    likelihood: Any,
    settings: PosteriorSettings,
    precision: Precision | None = None,
    start: Tensor | None = None,
) -> PredictionCache:
    """Make what predictions need, within `evaluating(model)`, in a given precision or in the one that serves.

    A float32 model is worked with in float64 where float32 would be too coarse.
    start: weights (n, 1) at which the solve for the mean begins, where it is by CG.
    """
    begin = time.perf_counter()
    snapshot = Snapshot(model, likelihood)
    prior = Prior.read(model, likelihood)
    if precision is None:
        by_solves = settings.choose(prior.form.size, prior.form.device)[0] == "cg"
        felt = felt_of_entries(prior.form, prior.noise, reach_of) if by_solves else None
        precision = decide_prediction(limits_of(prior.form, prior.noise), felt)
    if precision.dtype == prior.form.dtype:
        try:
            return _solve(settings, snapshot, prior, begin, start)
        except RTGPError as error:
            other = decide_after(error, precision.dtype)
            if other is None:
                raise
    return _solve(settings, snapshot, prior.in_float64(likelihood), begin, start)


def _solve(
    settings: PosteriorSettings, snapshot: Snapshot, prior: Prior, begin: float, start: Tensor | None
) -> PredictionCache:
    method, reason = settings.choose(prior.form.size, prior.form.device, prior.form.dtype)
    solver: CholeskySolver | KrylovSolver | None = None
    if method == "cholesky":
        system = NoiseUnits(make_from_form(prior.form, "tiled"), prior.noise)
        try:
            solver = CholeskySolver(system)
        except (MemoryError, RuntimeError) as error:
            if settings.method != "auto" or not is_out_of_memory(error):
                raise
            reason = f"n = {prior.form.size:,}, and the memory that Cholesky needs was not to be had"
    if solver is None:
        least, most = float(prior.noise.min()), settings.internal.memory_on_card
        operator = make_from_form(prior.form, settings.operator, least, most)
        system = NoiseUnits(operator, prior.noise)
        solver = KrylovSolver(system, settings.tolerance, _generator(settings), settings.internal.solve)
    rhs = system.scaled(prior.residual.reshape(system.size, -1).to(system.dtype))
    solution = solver.solve(rhs, None if start is None else system.unscaled(start.to(rhs)))
    return PredictionCache(settings, snapshot, prior, reason, system, solver, solution, time.perf_counter() - begin)


def _generator(settings: PosteriorSettings) -> torch.Generator:
    return torch.Generator().manual_seed(settings.seed)


def _excess(system: NoiseUnits, exact: VarianceSolver, lanczos: LanczosSolver, checked: int) -> float:
    """The largest fraction by which Lanczos variances exceed exact ones, at some training points."""
    n = system.size
    index = torch.linspace(0, n - 1, min(n, checked), device=system.device).long()
    b = system.scaled(system.operator.rows(index).T.contiguous())
    prior = system.operator.diagonal()[index].double()
    least = 1e-12 * float(prior.max())
    true = (prior - exact.explained(b, prior)).clamp_min(least)
    return float(((prior - lanczos.explained(b, prior)) / true).max()) - 1.0


class Snapshot:
    """Copies of the parameters, buffers, training data and noise of a model and its likelihood.

    They are compared by value: GPyTorch's own setters (kernel.lengthscale = 2) write through `.data`, which leaves no
    trace in PyTorch's version counters.
    """

    def __init__(self, model: torch.nn.Module, likelihood: torch.nn.Module) -> None:
        self._tensors = {name: t.detach().clone() for name, t in tensors_of(model, likelihood)}

    def matches(self, model: torch.nn.Module, likelihood: torch.nn.Module) -> bool:
        now = dict(tensors_of(model, likelihood))
        return now.keys() == self._tensors.keys() and all(_same(now[k], t) for k, t in self._tensors.items())


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    # Second: NaN (an unset buffer, say) is the same as NaN.
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
