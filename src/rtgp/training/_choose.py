"""What "auto" takes, and why: method, optimiser and start. Functions of sizes and kinds, never of a timing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from rtgp._methods import RRCG, Cholesky, Method
from rtgp._methods.facts import OptimizerChoice
from rtgp.errors import SettingError
from rtgp.training._newton import NewtonSettings
from rtgp.training._problem import Problem
from rtgp.training._start import GIVEN, StartSettings, part_of


@dataclass(frozen=True)
class MethodSettings:
    """Where Cholesky is the cheaper method.

    Attributes
    ----------
    cholesky_up_to : dict
        By kind of device, the number of points up to which Cholesky is the cheaper. There a whole training by Cholesky
        and L-BFGS (60 evaluations) takes as long as one by RR-CG and Adam (150 steps). On 2 CPU cores that is between
        1500 (elevators) and 4000 points (pol). On a GPU it is more. Fitted before Newton's method.
    cheap_inputs : int
        Beyond this number of inputs the kernel's entries cost both methods more than the algebra does.
    """

    cholesky_up_to: dict[str, int] = field(default_factory=lambda: {"cpu": 3000, "cuda": 8000})
    cheap_inputs: int = 100


class MethodChoice(NamedTuple):
    """The method that "auto" takes, and why.

    Attributes
    ----------
    method : settings object
        The method.
    reason : str
        Why, in words.
    """

    method: Method
    reason: str


@dataclass(frozen=True)
class StartChoice:
    """Where training begins.

    Attributes
    ----------
    size : int
        Number of points that a fit by Cholesky begins with; 0: none.
    neighbours : bool
        Whether the likelihood of neighbours is maximised next, where it is the better start.
    reason : str
        In words; of a start at the given hyperparameters, what is reported.
    look : int
        Number of points of a fit by Cholesky that only tells whether there is a better basin than that of the given
        hyperparameters; 0: none.
    """

    size: int
    neighbours: bool
    reason: str
    look: int = 0


def choose_method(
    n: int, d: int, device: torch.device | str = "cpu", settings: MethodSettings | None = None
) -> MethodChoice:
    """The method that "auto" takes for a given size of data.

    Parameters
    ----------
    n : int
        The number of points.
    d : int
        The number of inputs.
    device : torch.device or str
        Where training runs.
    settings : MethodSettings, optional
        The limits that decide.

    Returns
    -------
    MethodChoice
        The method, and the reason in words.

    Examples
    --------
    >>> from rtgp.training import choose_method
    >>> method, reason = choose_method(n=50_000, d=8)
    >>> type(method).__name__
    'RRCG'
    """
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
    own = method.default_optimizer
    if method.exact:
        return own
    if learning_rate is not None:
        return OptimizerChoice("adam", "a learning rate is given")
    if own.name != "average-information":
        return own
    count = sum(parameter.numel() for parameter in problem.parameters.values())
    if count > most:
        return OptimizerChoice("adam", f"{count} parameters are more than {most}, each of which costs a solve")
    if not problem.knows_information():
        return OptimizerChoice("adam", "the model has parameters that act through the inputs of its kernel")
    return own


def choose_start(
    subset_start: str | bool | int, method: Method, n: int, parameters: int, settings: StartSettings | None = None
) -> StartChoice:
    """Where to begin, for a given number of trained parameters."""
    settings = settings or StartSettings()
    if subset_start == "auto":
        if method.conditioned_on is not None:
            return StartChoice(0, True, "the method's own likelihood sees all points")
        look = min(settings.least, n)
        look = 0 if parameters * settings.points_per_parameter > look else look
        if method.exact:
            return StartChoice(0, False, GIVEN, look)
        if n < settings.large:
            return StartChoice(0, False, f"{GIVEN} (a subset start is taken from {settings.large} points on)", look)
        size = part_of(n, settings)
        if parameters * settings.points_per_parameter > size:
            reason = f"{GIVEN} ({parameters} are too many for a start from {size} points)"
            return StartChoice(0, False, reason)
        return StartChoice(size, True, f"noisy steps on {n} points cost more than a fit on {size}")
    if subset_start is False:
        return StartChoice(0, False, GIVEN)
    if subset_start is True:
        return StartChoice(min(settings.subset, n), False, "asked for")
    if isinstance(subset_start, int) and subset_start >= 2:
        return StartChoice(min(subset_start, n), False, "asked for")
    raise SettingError(
        "The 'subset_start' parameter must be 'auto', True, False or a number of points from 2. "
        f"Got {subset_start!r} instead."
    )
