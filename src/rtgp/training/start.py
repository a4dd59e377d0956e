"""A start for large data: hyperparameters fitted by Cholesky on a small random subset."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rtgp.errors import RTGPError
from rtgp.methods import Cholesky, Method
from rtgp.objectives.reading import on_subset
from rtgp.training.lbfgs import Array, Surface, minimise
from rtgp.training.problem import Problem


@dataclass(frozen=True)
class StartSettings:
    """A fit by Cholesky and L-BFGS on some of the points.

    subset: number of points, or half of the data if that is less.
    large: number of data points from which on "auto" takes a subset: Adam alone is slow even with exact gradients.
    points_per_parameter: with fewer points of a subset than this for each parameter, "auto" takes none.
    steps: the most steps of the fit.
    tolerance: relative decrease of a step at which the fit ends.
    reach: how far a logarithm may go, down and up. An input that the subset does not need must not be lost for the
        whole: at a lengthscale of thousands its gradient has vanished, and no step size of 0.1 brings it back in time.
    fallen, nothing_learned: with little noise the loss at the start may be so high that it falls all the way along the
        first gradient, to a lengthscale of nothing, where no slope is left. Where a logarithm has fallen by `fallen`,
        or the objective is within `nothing_learned` per point of that of independent targets, the fit is tried
        again ...
    rounds: ... with rounds first that go less far: (how far either way, for how many steps).
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


DEFAULT = StartSettings()


def part_of(n: int, settings: StartSettings = DEFAULT) -> int:
    """How many of n points a start takes unless told otherwise."""
    return min(settings.subset, n // 2)


@dataclass(frozen=True)
class FirstFit:
    """The end of a cheap fit. The problem's parameters are there."""

    objective: float  # per point, by the likelihood that was fitted
    evaluations: int


def fit_on_subset(problem: Problem, size: int, seed: int, settings: StartSettings = DEFAULT) -> FirstFit | str:
    """Go to the parameters fitted by Cholesky on `size` random points; why that failed, in words, where it did."""
    index = torch.randperm(problem.n, generator=torch.Generator().manual_seed(seed))[:size].to(problem.X.device)
    try:
        small = on_points(problem, index, Cholesky(), seed)
    except RTGPError as error:  # some models cannot be copied
        return str(error)
    surface = Surface(small)
    origin = surface.x()
    try:
        end, value = _minimised(surface, origin, (), settings)
        alone = 0.5 * math.log(2.0 * math.pi * math.e * max(float(small.y.var(correction=0)), 1e-300))
        if float((end - origin).min()) < settings.fallen or value > alone - settings.nothing_learned:
            cautious = _minimised(surface, origin, settings.rounds, settings)
            end, value = min((end, value), cautious, key=lambda found: found[1])
    except RTGPError as error:
        return str(error)
    surface.move_to(end)
    problem.take_parameters(small)
    return FirstFit(value, len(surface.values))


def _minimised(
    surface: Surface, origin: Array, rounds: tuple[tuple[float, int], ...], settings: StartSettings
) -> tuple[Array, float]:
    """Where L-BFGS from the origin ends, and the objective there; after rounds in which it may go less far."""
    whole, here = within_reach(origin, settings), origin
    for reach, steps in rounds:
        near = [(max(v - reach, low), min(v + reach, high)) for v, (low, high) in zip(here, whole, strict=True)]
        minimise(surface, here, steps, settings.tolerance, lambda x: None, near)
        here = surface.x()
    minimise(surface, here, settings.steps, settings.tolerance, lambda x: None, whole)
    end = surface.x()
    return end, surface(end)[0]


def within_reach(origin: Array, settings: StartSettings = DEFAULT) -> list[tuple[float, float]]:
    """Bounds of a fit from here."""
    down, up = settings.reach
    return [(float(value) + down, float(value) + up) for value in origin]


def on_points(problem: Problem, index: torch.Tensor, method: Method, seed: int, draws: str = "fresh") -> Problem:
    """The problem on some of its points, by another method, in float64: a copy."""
    model, likelihood, X, y = on_subset(problem.model, problem.likelihood, problem.X, problem.y, index)
    return Problem(model, likelihood, X, y, method, seed, draws)
