"""Obstacles on the way: an evaluation that fails, conjugate gradients that make no progress. What is changed, and why.

The decision for Cholesky is a pure function of a `Situation`. `overcome` and `consider_cholesky` carry it out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rtgp._methods import Method
from rtgp._objectives import EstimateStats
from rtgp.errors import ConvergenceError, InputError, OutOfMemoryError, RTGPError
from rtgp.training._switch_to_cholesky import SwitchSettings, exact_possible

if TYPE_CHECKING:
    from rtgp.training._problem import Problem


@dataclass(frozen=True)
class Situation:
    """What decides how long a run may take and whether Cholesky takes the method's place."""

    method: Method
    n: int  # data points
    device: torch.device
    frozen: bool  # whether the random draws are: then the surface must stay the same
    last: EstimateStats | None  # the last estimate
    runs: tuple[int, ...]  # iterations of the last evaluations
    settings: SwitchSettings = field(default_factory=SwitchSettings)

    @property
    def exact_possible(self) -> bool:
        return exact_possible(self.method, self.n, self.device)

    @property
    def most_iterations(self) -> int | None:
        """Iterations after which one run is given up; None: never."""
        if not self.method.replaceable or self.frozen:
            return None
        return self.settings.limit(self.n, *self._size(), self.device, self.exact_possible)

    def why_cholesky(self, steps_left: int, too_noisy: bool) -> str | None:
        """Why Cholesky is the cheaper from here on; None where it is not.

        It is the cheaper where the last runs cost more than a factorisation. It also is where noise that cannot be
        averaged out keeps conjugate gradients busy for all the steps that are left, at a higher cost.
        """
        runs = self.runs[-self.settings.recent :]
        if len(runs) < self.settings.recent or not self.exact_possible:
            return None
        size, mean = (*self._size(), self.device), sum(runs) / len(runs)
        most = self.settings.break_even(self.n, *size)
        if mean > most:
            return f"{mean:.0f} iterations a step, and a factorisation costs as much as {most}"
        if too_noisy and mean * steps_left > self.settings.exact_steps * self.settings.cost(self.n, *size):
            return "the noise of the gradients is too much to be averaged out in the steps left"
        return None

    def why_cholesky_at_last(self, steps: int, spent: int, ended: bool) -> str | None:
        """Why Cholesky goes on where all steps are used up, or where conjugate gradients have `ended`.

        It costs no more than the iterations spent, and its gradients have no noise in which a further decrease could
        hide.
        """
        if not self.exact_possible:
            return None
        wanted = self.settings.exact_steps * self.settings.cost(self.n, *self._size(), self.device)
        if spent <= wanted:
            return None
        what = f"the end found in {steps} steps is made exact" if ended else f"no end in {steps} steps"
        return f"{what}, which costs no more than they did"

    def _size(self) -> tuple[int, int]:
        """Rank of the preconditioner and columns of a run: those of the last run, or the usual ones."""
        if self.last is not None and self.last.columns:
            return self.last.rank, self.last.columns
        return math.isqrt(2 * self.n * self.method.columns), self.method.columns


def overcome(problem: Problem, error: RTGPError, last_resort: bool) -> bool:
    """Change something after an evaluation failed. Returned is whether another try is worth it.

    First come the precision, the rank or what is stored. Then Cholesky takes the place of conjugate gradients that make
    no progress. With `last_resort` there is no step that could be taken back: then Cholesky is tried after any other
    failure too, and a jitter, which changes the model.
    """
    words = str(error).split(". ")[0].rstrip(".")
    possible = problem.situation.exact_possible
    if isinstance(error, ConvergenceError) and possible:
        problem.take_cholesky(f"conjugate gradients made no progress ({words})")
        return True
    change = None if problem.exact and not last_resort else problem.mll.overcome(error)
    if change is not None:
        problem.change(f"{change} ({words})")
        return True
    if isinstance(error, (OutOfMemoryError, InputError)) or not (last_resort and possible):
        return False
    problem.take_cholesky(words)
    return True


def consider_cholesky(problem: Problem, steps_left: int, too_noisy: bool) -> None:
    """Take Cholesky where it is the cheaper."""
    why = problem.situation.why_cholesky(steps_left, too_noisy)
    if why is not None:
        problem.take_cholesky(why)


def consider_cholesky_at_last(problem: Problem, steps: int, spent: int, ended: bool) -> bool:
    """Take Cholesky where all steps are used up or training has ended, if it is cheap beside what was spent.

    Returned is whether it was taken.
    """
    why = problem.situation.why_cholesky_at_last(steps, spent, ended)
    if why is not None:
        problem.take_cholesky(why)
    return why is not None
