"""A start for large data: hyperparameters fitted by Cholesky on a small random subset."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from rtgp._methods import Cholesky, Method
from rtgp._objectives.reading import on_subset
from rtgp._precision import SILENT
from rtgp.errors import RTGPError
from rtgp.training._lbfgs import Array, LBFGSSettings, Surface, minimise
from rtgp.training._problem import Problem
from rtgp.training._scan import ScanSettings, fitted_from_the_best

GIVEN = "the given hyperparameters"


@dataclass(frozen=True)
class StartSettings:
    """A fit by Cholesky and L-BFGS on some of the points.

    Attributes
    ----------
    subset : int
        Number of points, or half of the data if that is less.
    large : int
        Number of data points from which "auto" takes a subset. Adam alone is slow even with exact gradients.
    points_per_parameter : int
        "auto" takes no subset that has fewer points than this for each parameter.
    steps : int
        The largest number of steps.
    tolerance : float
        Relative decrease of a step at which the fit ends.
    reach : float
        How far a logarithm may go, down and up. An input that the subset does not need must not be lost for all data:
        at a lengthscale of thousands its gradient has vanished, and no step size of 0.1 brings it back in time.
    fallen, nothing_learned : float
        With little noise the loss at the start may be so high that the first step goes to a lengthscale of nothing,
        where there is no slope. If a logarithm has fallen by `fallen`, or the objective is within `nothing_learned` per
        point of that of independent targets, the fit is tried again with `rounds`.
    rounds : tuple
        Rounds that go less far: (how far either way, for how many steps).
    lbfgs : LBFGSSettings
        How the fit moves.
    scan : ScanSettings
        Where else it may begin.
    least : int
        Number of points of a fit that only tells whether there is a better basin than that of the given
        hyperparameters, or all there are.
    """

    subset: int = 1000
    large: int = 200
    points_per_parameter: int = 5
    steps: int = 60
    tolerance: float = 1e-5
    reach: tuple[float, float] = (-9.0, 3.0)
    fallen: float = -6.0
    nothing_learned: float = 0.05
    rounds: tuple[tuple[float, int], ...] = ((1.0, 8), (3.0, 12))
    lbfgs: LBFGSSettings = field(default_factory=LBFGSSettings)
    scan: ScanSettings = field(default_factory=ScanSettings)
    least: int = 500


DEFAULT = StartSettings()


def part_of(n: int, settings: StartSettings = DEFAULT) -> int:
    """The number of points that a start takes by default."""
    return min(settings.subset, n // 2)


@dataclass(frozen=True)
class FirstFit:
    """The end of a cheap fit. The problem's parameters are there."""

    objective: float  # per point, by the likelihood that was fitted
    evaluations: int
    before: float | None = None  # the same where the fit began; None where that is not known
    place: str = ""  # where else it began, in words


def fit_on_subset(problem: Problem, size: int, seed: int, settings: StartSettings = DEFAULT) -> FirstFit | str:
    """Go to the parameters fitted by Cholesky on `size` random points.

    If that fails, the reason is returned, in words.
    """
    index = torch.randperm(problem.rows, generator=torch.Generator().manual_seed(seed))[:size].to(problem.X.device)
    try:
        small = on_points(problem, index, Cholesky(), seed)
    except RTGPError as error:  # some models cannot be copied
        return str(error)
    surface = Surface(small, settings.lbfgs)
    origin = surface.x()
    alone = 0.5 * math.log(2.0 * math.pi * math.e * max(float(small.y.var(correction=0)), 1e-300))

    def fitted(start: Array) -> tuple[Array, float]:
        end, value = _minimised(surface, start, origin, (), settings)
        if float((end - start).min()) < settings.fallen or value > alone - settings.nothing_learned:
            cautious = _minimised(surface, start, origin, settings.rounds, settings)
            end, value = min((end, value), cautious, key=lambda found: found[1])
        return end, value

    try:
        found = fitted_from_the_best(surface, origin, fitted, settings.scan)
    except RTGPError as error:
        return str(error)
    surface.move_to(found.end)
    problem.take_parameters(small)
    return FirstFit(found.value, len(surface.values), place=found.place)


def _minimised(
    surface: Surface, start: Array, origin: Array, rounds: tuple[tuple[float, int], ...], settings: StartSettings
) -> tuple[Array, float]:
    """Where L-BFGS from a start ends, and the objective there.

    It stays in reach of the origin. Rounds come first, in which it may go less far.
    """
    whole, here = within_reach(origin, settings.reach), start
    for reach, steps in rounds:
        near = [(max(v - reach, low), min(v + reach, high)) for v, (low, high) in zip(here, whole, strict=True)]
        minimise(surface, here, steps, settings.tolerance, lambda x: None, near)
        here = surface.x()
    minimise(surface, here, settings.steps, settings.tolerance, lambda x: None, whole)
    end = surface.x()
    return end, surface(end)[0]


def within_reach(origin: Array, reach: tuple[float, float]) -> list[tuple[float, float]]:
    """Bounds of a fit from here."""
    down, up = reach
    return [(float(value) + down, float(value) + up) for value in origin]


def on_points(problem: Problem, index: torch.Tensor, method: Method, seed: int, draws: str = "fresh") -> Problem:
    """A copy of the problem on some of its points, by another method, in float64.

    It tells the user nothing. It makes a candidate, and training makes its own findings about that.
    """
    model, likelihood, X, y = on_subset(problem.model, problem.likelihood, problem.X, problem.y, index)
    return Problem(model, likelihood, X, y, method, seed, draws, settings=problem.settings, notices=SILENT)
