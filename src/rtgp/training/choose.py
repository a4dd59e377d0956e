"""What "auto" takes, and why: method, optimiser and start. Functions of sizes and kinds, never of a timing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from rtgp.baselines import Vecchia
from rtgp.errors import SettingError
from rtgp.methods import CG, RRCG, Cholesky, Method
from rtgp.training.newton import NewtonSettings
from rtgp.training.problem import Problem
from rtgp.training.start import StartSettings, part_of

WITH_INFORMATION = (Cholesky, CG, RRCG)  # methods that estimate the average-information matrix too
_GIVEN = "the given hyperparameters"


@dataclass(frozen=True)
class MethodSettings:
    """cholesky_up_to: number of points up to which Cholesky is the cheaper, by kind of device: where a whole training
        by Cholesky and L-BFGS (60 evaluations) takes as long as by RR-CG and Adam (150 steps). On 2 CPU cores that is
        between 1500 (elevators) and 4000 (pol); on a GPU Cholesky holds out longer. Fitted before Newton's method.
    cheap_inputs: beyond so many inputs the kernel's entries cost both methods more than the algebra does.
    """

    cholesky_up_to: dict[str, int] = field(default_factory=lambda: {"cpu": 3000, "cuda": 8000})
    cheap_inputs: int = 100


class MethodChoice(NamedTuple):
    method: Method
    reason: str


@dataclass(frozen=True)
class OptimizerChoice:
    name: str
    reason: str


@dataclass(frozen=True)
class StartChoice:
    """size: number of points that a fit by Cholesky begins with; 0: none.
    neighbours: whether the likelihood of neighbours is maximised next, where it is the better start.
    reason: in words; of a start at the given hyperparameters, what is reported.
    """

    size: int
    neighbours: bool
    reason: str


def choose_method(
    n: int, d: int, device: torch.device | str = "cpu", settings: MethodSettings | None = None
) -> MethodChoice:
    """The method for n points with d inputs on a device, and the reason in words."""
    settings = settings or MethodSettings()
    kind = torch.device(device).type
    limit = settings.cholesky_up_to.get(kind, settings.cholesky_up_to["cuda"])
    # Both methods evaluate n^2 d entries in a step; Cholesky with L-BFGS takes fewer steps.
    limit = round(limit * max(1.0, d / settings.cheap_inputs) ** 0.5)
    size = f"n = {n} is {'at most' if n <= limit else 'above'} {limit}"
    if n <= limit:
        return MethodChoice(Cholesky(), f"{size}, up to which Cholesky is the cheaper on {kind} for d = {d}")
    return MethodChoice(RRCG(), f"{size}, beyond which RR-CG is the cheaper on {kind} for d = {d}")


def choose_optimizer(
    problem: Problem, learning_rate: float | None, settings: NewtonSettings | None = None
) -> OptimizerChoice:
    """The optimiser for a problem, by its method and its parameters."""
    most, method = (settings or NewtonSettings()).most_parameters, problem.method
    if isinstance(method, Cholesky):
        return OptimizerChoice("lbfgs", "gradients are exact")
    if learning_rate is not None:
        return OptimizerChoice("adam", "a learning rate is given")
    if isinstance(method, Vecchia):
        return OptimizerChoice("lbfgs", "the objective is the same in every call")
    if not isinstance(method, WITH_INFORMATION):
        return OptimizerChoice("adam", f"{type(method).__name__} does not estimate the average-information matrix")
    count = sum(parameter.numel() for parameter in problem.parameters.values())
    if count > most:
        return OptimizerChoice("adam", f"{count} parameters are more than {most}, each of which costs a solve")
    if not problem.knows_information():
        return OptimizerChoice("adam", "the model has parameters that act through the inputs of its kernel")
    return OptimizerChoice("average-information", "gradients are noisy, and the average-information matrix is known")


def choose_start(
    subset_start: str | bool | int, method: Method, n: int, parameters: int, settings: StartSettings | None = None
) -> StartChoice:
    """Where to begin; parameters: how many are trained."""
    settings = settings or StartSettings()
    if subset_start == "auto":
        if isinstance(method, Vecchia):
            return StartChoice(0, True, "the method's own likelihood sees all points")
        if isinstance(method, Cholesky):
            return StartChoice(0, False, _GIVEN)
        if n < settings.large:
            return StartChoice(0, False, f"{_GIVEN} (a subset start is taken from {settings.large} points on)")
        size = part_of(n, settings)
        if parameters * settings.points_per_parameter > size:
            reason = f"{_GIVEN} ({parameters} are too many for a start from {size} points)"
            return StartChoice(0, False, reason)
        return StartChoice(size, True, f"noisy steps on {n} points cost more than a fit on {size}")
    if subset_start is False:
        return StartChoice(0, False, _GIVEN)
    if subset_start is True:
        return StartChoice(min(settings.subset, n), False, "asked for")
    if isinstance(subset_start, int) and subset_start >= 2:
        return StartChoice(min(subset_start, n), False, "asked for")
    raise SettingError(
        "The 'subset_start' parameter must be 'auto', True, False or a number of points from 2. "
        f"Got {subset_start!r} instead."
    )
