"""A start from all points: hyperparameters that maximise Vecchia's likelihood, each point given a few near ones.

A fit on a small subset learns the lengthscales of another density of points. The likelihood of neighbours sees all of
them, at O(rows m^3) for an evaluation. It is biased, so that the objective itself decides whether the start is taken.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from rtgp._kernels import read_covariance
from rtgp._methods import Vecchia
from rtgp._preconditioners.nearest import coordinates
from rtgp.errors import RTGPError
from rtgp.training._lbfgs import Array, LBFGSSettings, Surface, minimise
from rtgp.training._problem import Problem
from rtgp.training._scan import ScanSettings, fitted_from_the_best
from rtgp.training._start import GIVEN, FirstFit, StartSettings, on_points, within_reach


@dataclass(frozen=True)
class Stage:
    """One fit by L-BFGS.

    Attributes
    ----------
    count : int
        Neighbours of each point.
    rows : int
        Points whose densities stand for those of all.
    rows_on_card : int
        The same on a GPU.
    steps : int
        The largest number of steps.
    tolerance : float
        Decrease per point of a step at which the fit ends.
    """

    count: int
    rows: int
    rows_on_card: int
    steps: int
    tolerance: float


@dataclass(frozen=True)
class NeighbourStart:
    """Fits one after the other; neighbours are found again for each.

    Attributes
    ----------
    stages : tuple[Stage, ...]
        The first, on few points, only finds the region. The others see all points while these are not too many, for
        sampling costs more than neighbours save: on 4,000 airports 2,048 of them ended .008 (Matern 1/2) and .02
        (Matern 3/2) per point higher than all. Their tolerances are small: with a Matern-1/2 kernel the likelihood has
        a ridge, along which a step by neighbours costs a fifth of a step by all points.
    least : int
        Points up to which a fit on a subset of them sees enough.
    agrees : float
        Difference per point between this likelihood and an unbiased estimate on all points up to which it is believed.
        Where neighbours serve it is some thousandths (airports, precipitation); on kin40k it is .4.
    clear : float
        Gain per point by a likelihood that is believed from which on the objective is not asked whether the given
        hyperparameters are better: an estimate there may take more iterations than several steps of training.
    reach : tuple[float, float]
        How far a logarithm may go, down and up, in each fit: as far as in the fit on a subset.
    lbfgs : LBFGSSettings
        How the fits move.
    scan : ScanSettings or None
        Where else the first may begin.
    """

    stages: tuple[Stage, ...] = (
        Stage(count=16, rows=1024, rows_on_card=16384, steps=40, tolerance=1e-5),
        Stage(count=16, rows=8192, rows_on_card=131072, steps=20, tolerance=1e-6),
        Stage(count=32, rows=8192, rows_on_card=131072, steps=20, tolerance=1e-6),
    )
    least: int = 2000
    agrees: float = 0.02
    clear: float = 0.25
    reach: tuple[float, float] = StartSettings.reach
    lbfgs: LBFGSSettings = field(default_factory=LBFGSSettings)
    scan: ScanSettings | None = field(default_factory=ScanSettings)

    @property
    def count(self) -> int:
        """Neighbours at the end."""
        return self.stages[-1].count


DEFAULT = NeighbourStart()


def fit_by_neighbours(problem: Problem, seed: int, settings: NeighbourStart = DEFAULT) -> FirstFit | str:
    """Go to the parameters fitted by the likelihood of neighbours.

    If that fails, the problem stays where it was, and the reason is returned, in words.
    """
    evaluations, objective = 0, math.nan
    before: float | None = None
    everything = torch.arange(problem.rows, device=problem.X.device)
    place, scan = "", settings.scan
    for stage in settings.stages:
        rows = stage.rows_on_card if problem.X.is_cuda else stage.rows
        method = Vecchia(min(stage.count, max(problem.rows - 1, 1)), None if rows >= problem.rows else rows)
        part = on_points(problem, everything, method, seed, "frozen")
        surface = Surface(part, settings.lbfgs)
        origin = surface.x()
        fitted = partial(_minimised, surface, within_reach(origin, settings.reach), stage)
        try:
            if scan is None:
                fitted(origin)
            else:  # the first, which is cheap, finds the region
                found = fitted_from_the_best(surface, origin, fitted, scan)
                surface.move_to(found.end)
                place, scan = found.place, None
        except RTGPError as error:
            return str(error)
        finally:
            part.mll.release()
        problem.take_parameters(part)
        evaluations, objective = evaluations + len(surface.values), min(surface.values)
        before = surface.values[0] if before is None else before
    return FirstFit(objective, evaluations, before, place)


def _minimised(surface: Surface, bounds: list[tuple[float, float]], stage: Stage, start: Array) -> tuple[Array, float]:
    """Where L-BFGS from a start ends, and the objective there."""
    minimise(surface, start, stage.steps, stage.tolerance, lambda x: None, bounds)
    end = surface.x()
    return end, surface(end)[0]


def start_from_neighbours(problem: Problem, count: int, seed: int, settings: NeighbourStart = DEFAULT) -> str:
    """Find the neighbours for a training that uses `count` of them itself. What was done is returned, in words."""
    *first, last = settings.stages
    stages = [replace(stage, count=min(stage.count, count)) for stage in first]
    settings = replace(settings, stages=(*stages, replace(last, count=count)))
    before, began = problem.snapshot(), time.perf_counter()
    fitted = fit_by_neighbours(problem, seed, settings)
    if isinstance(fitted, str):
        problem.restore(before)
        return f"{GIVEN} (a first fit failed: {fitted})"
    return (
        f"hyperparameters fitted by {settings.stages[0].count}, then {settings.count} neighbours of some of the points "
        f"({fitted.evaluations} evaluations, {time.perf_counter() - began:.1f} s)"
    )


def pays(problem: Problem, subset: int, settings: NeighbourStart = DEFAULT) -> bool:
    """Whether the fit is cheap beside training and sees more than the subset did.

    That is so for stationary kernels, whose blocks and neighbours are cheap, and for methods that iterate on all
    points.
    """
    if problem.rows <= max(subset, settings.least) or not problem.method.iterative:
        return False
    try:
        return coordinates(read_covariance(problem.output().lazy_covariance_matrix)) is not None
    except RTGPError:  # training will say so
        return False
