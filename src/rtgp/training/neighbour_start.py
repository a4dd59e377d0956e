"""A start from all points: hyperparameters that maximise Vecchia's likelihood, each point given a few near ones.

A fit on a small subset learns the lengthscales of another density of points. The likelihood of neighbours sees all of
them, at O(rows m^3) for an evaluation. It is biased, so that the objective itself decides whether the start is taken.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch

from rtgp.baselines import Vecchia
from rtgp.errors import RTGPError
from rtgp.kernels import read_covariance
from rtgp.methods import CG, RRCG
from rtgp.preconditioners.nearest import coordinates
from rtgp.training.lbfgs import Surface, minimise
from rtgp.training.problem import Problem
from rtgp.training.start import FirstFit, on_points, within_reach


@dataclass(frozen=True)
class Stage:
    """One fit by L-BFGS.

    count: neighbours of each point.
    rows: points whose densities stand for those of all.
    rows_on_card: the same on a GPU.
    steps: at the most.
    tolerance: decrease per point of a step at which the fit ends.
    """

    count: int
    rows: int
    rows_on_card: int
    steps: int
    tolerance: float


@dataclass(frozen=True)
class NeighbourStart:
    """Fits one after the other; neighbours are found again for each.

    stages: the first, on few points, only finds the region. The others see all points while these are not too many,
        for sampling costs more than neighbours save: on 4,000 airports 2,048 of them ended .008 (Matern 1/2) and .02
        (Matern 3/2) per point higher than all. Their tolerances are small: with a Matern-1/2 kernel the likelihood has
        a ridge, along which a step by neighbours costs a fifth of a step by all points.
    least: points up to which a fit on a subset of them sees enough.
    agrees: difference per point between this likelihood and an unbiased estimate on all points up to which it is
        believed. Where neighbours serve it is some thousandths (airports, precipitation); on kin40k it is .4.
    """

    stages: tuple[Stage, ...] = (
        Stage(count=16, rows=1024, rows_on_card=16384, steps=40, tolerance=1e-5),
        Stage(count=16, rows=8192, rows_on_card=131072, steps=20, tolerance=1e-6),
        Stage(count=32, rows=8192, rows_on_card=131072, steps=20, tolerance=1e-6),
    )
    least: int = 2000
    agrees: float = 0.02

    @property
    def count(self) -> int:
        """Neighbours at the end."""
        return self.stages[-1].count


DEFAULT = NeighbourStart()


def fit_by_neighbours(problem: Problem, seed: int, settings: NeighbourStart = DEFAULT) -> FirstFit | str:
    """Go to the parameters fitted by the likelihood of neighbours; why that failed, in words, where it did: then the
    problem stays where it was."""
    evaluations, objective = 0, math.nan
    everything = torch.arange(problem.n, device=problem.X.device)
    for stage in settings.stages:
        rows = stage.rows_on_card if problem.X.is_cuda else stage.rows
        method = Vecchia(min(stage.count, max(problem.n - 1, 1)), None if rows >= problem.n else rows)
        part = on_points(problem, everything, method, seed, "frozen")
        surface = Surface(part)
        origin = surface.x()
        try:
            minimise(surface, origin, stage.steps, stage.tolerance, lambda x: None, within_reach(origin))
        except RTGPError as error:
            return str(error)
        finally:
            part.mll.release()
        problem.take_parameters(part)
        evaluations, objective = evaluations + len(surface.values), min(surface.values)
    return FirstFit(objective, evaluations)


def start_from_neighbours(problem: Problem, method: Vecchia, seed: int) -> str:
    """For a training by neighbours itself: where its neighbours are then found. What was done, in words."""
    *first, last = DEFAULT.stages
    stages = [replace(stage, count=min(stage.count, method.neighbours)) for stage in first]
    settings = replace(DEFAULT, stages=(*stages, replace(last, count=method.neighbours)))
    before, began = problem.snapshot(), time.perf_counter()
    fitted = fit_by_neighbours(problem, seed, settings)
    if isinstance(fitted, str):
        problem.restore(before)
        return f"the given hyperparameters (a first fit failed: {fitted})"
    return (
        f"hyperparameters fitted by {settings.stages[0].count}, then {settings.count} neighbours of some of the points "
        f"({fitted.evaluations} evaluations, {time.perf_counter() - began:.1f} s)"
    )


def pays(problem: Problem, subset: int, settings: NeighbourStart = DEFAULT) -> bool:
    """Whether the fit is cheap beside training, and sees more than the subset did: stationary kernels, whose blocks
    and neighbours are cheap, and methods that iterate on all points."""
    if problem.n <= max(subset, settings.least) or not isinstance(problem.method, (CG, RRCG)):
        return False
    try:
        return coordinates(read_covariance(problem.model(problem.X).lazy_covariance_matrix)) is not None
    except RTGPError:  # training will say so
        return False
