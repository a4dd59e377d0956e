"""A start for large data: hyperparameters fitted by Cholesky on a small random subset."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

from rtgp.errors import RTGPError, SettingError
from rtgp.methods import Cholesky
from rtgp.ownership import without_cycles
from rtgp.training.lbfgs import Surface, minimise
from rtgp.training.problem import Problem

SUBSET = 1000  # points, or half of the data if that is less
_LARGE = 200  # points, from which on "auto" takes a subset: Adam alone is slow even with exact gradients
_STEPS = 60
_TOLERANCE = 1e-5
# How far a logarithm may go. An input that the subset does not need must not be lost for the whole: at a lengthscale
# of thousands its gradient has vanished, and no step size of 0.1 brings it back in time.
_REACH = (-9.0, 3.0)
_POINTS_PER_PARAMETER = 5


def part_of(n: int) -> int:
    """How many of n points a start takes unless told otherwise."""
    return min(SUBSET, n // 2)


def subset_size(subset_start: str | bool | int, n: int, parameters: int) -> tuple[int, str]:
    """How many points to begin with (0: none), and in words why none."""
    if subset_start == "auto":
        if n < _LARGE:
            return 0, f"the given hyperparameters (a subset start is taken from {_LARGE} points on)"
        size = part_of(n)
        if parameters * _POINTS_PER_PARAMETER > size:
            return 0, f"the given hyperparameters ({parameters} are too many for a start from {size} points)"
        return size, ""
    if subset_start is True:
        return min(SUBSET, n), ""
    if subset_start is False:
        return 0, "the given hyperparameters"
    if isinstance(subset_start, int) and subset_start >= 2:
        return min(subset_start, n), ""
    raise SettingError(
        "The 'subset_start' parameter must be 'auto', True, False or a number of points from 2. "
        f"Got {subset_start!r} instead."
    )


def start_from_subset(problem: Problem, size: int, seed: int) -> str:
    """Set the parameters to those fitted on `size` random points, or leave them where these are no better on all
    points; what was done, in words."""
    began, given = time.perf_counter(), problem.snapshot()
    fitted = fit_on_subset(problem, size, seed)
    if isinstance(fitted, str):
        return f"the given hyperparameters (the fit on {size} points failed: {fitted})"
    words = (
        f"hyperparameters fitted by Cholesky on {size} of {problem.n} points, drawn with seed {seed} "
        f"({fitted.evaluations} evaluations, {time.perf_counter() - began:.1f} s)"
    )
    if size == problem.n:  # they were compared where it matters
        return words
    there, here = problem.snapshot(), problem.objective_at(given, seed)
    now = problem.objective_at(there, seed)
    if now is None or (here is not None and here < now):
        problem.restore(given)
        compared = "cannot be computed there" if now is None or here is None else f"is {now - here:.3g} lower here"
        return f"the given hyperparameters: on all points the loss {compared} than at {words}"
    return words


@dataclass(frozen=True)
class SubsetFit:
    """The end of a fit on some of the points. The problem's parameters are there."""

    objective: float  # per point
    evaluations: int


def fit_on_subset(problem: Problem, size: int, seed: int) -> SubsetFit | str:
    """Go to the parameters fitted by Cholesky on `size` random points; why that failed, in words, where it did."""
    index = torch.randperm(problem.n, generator=torch.Generator().manual_seed(seed))[:size].to(problem.X.device)
    small = _on_subset(problem, index, seed)
    surface = Surface(small)
    origin = surface.x()
    bounds = [(float(value) + _REACH[0], float(value) + _REACH[1]) for value in origin]
    try:
        minimise(surface, origin, _STEPS, _TOLERANCE, lambda x: None, bounds)
    except RTGPError as error:
        return str(error)
    problem.take_parameters(small)
    return SubsetFit(min(surface.values), len(surface.values))


def _on_subset(problem: Problem, index: torch.Tensor, seed: int) -> Problem:
    model, likelihood = copy.deepcopy((problem.model, problem.likelihood))  # together: they share modules
    without_cycles(model), without_cycles(likelihood)
    X, y = problem.X[index].double(), problem.y[index].double()
    model.double().set_train_data(X, y, strict=False)
    likelihood.double()
    if isinstance(likelihood, FixedNoiseGaussianLikelihood):
        noise: Any = likelihood.noise_covar
        noise.noise = noise.noise[index]
    return Problem(model.train(), likelihood.train(), X, y, Cholesky(), seed)
