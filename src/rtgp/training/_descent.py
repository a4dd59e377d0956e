"""Torch optimisers on a noisy objective: a step size that falls to zero averages the noise out.

Averaging the last iterates on top of it was measured and changed nothing (less than 3e-5 per point, also at one probe).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rtgp._state import saved_tensor
from rtgp.distributed._errors import DisagreementError, RankError
from rtgp.errors import OutOfMemoryError, RTGPError
from rtgp.training._evaluation import Evaluation
from rtgp.training._history import Row
from rtgp.training._obstacles import overcome
from rtgp.training._outcome import NoWayOnError, Outcome
from rtgp.training._plateau import Plateau
from rtgp.training._result import FitStatus
from rtgp.training._schedule import Schedule
from rtgp.training._session import Session


@dataclass(frozen=True)
class DescentSettings:
    """When a descent by a torch optimiser slows down, goes back and ends. Chosen, not fitted.

    Attributes
    ----------
    tolerance : float
        Fall of the mean loss per point below which Adam's step size begins to fall, by default.
    least_damping : float
        Part of the step size below which a failure is not the step's fault.
    rise, sigmas, in_a_row
        Adam may leave a valley that it was in, and never come back: the weights of a network at a step size of 0.1. It
        goes back to the best point, with smaller steps, after `in_a_row` steps at a loss that is higher by `rise` per
        point and by `sigmas` standard errors.
    """

    tolerance: float = 1e-3
    least_damping: float = 1e-2
    rise: float = 0.1
    sigmas: float = 4.0
    in_a_row: int = 3


DEFAULT = DescentSettings()


def descend(
    session: Session,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    plateau: Plateau | None,
    settings: DescentSettings = DEFAULT,
) -> Outcome:
    """Train until the criterion is met, the steps are used up or the callback stops it."""
    return _Descent(session, optimizer, schedule, plateau, settings).run()


class _Descent:
    def __init__(
        self,
        session: Session,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        plateau: Plateau | None,
        settings: DescentSettings,
    ) -> None:
        self.session, self.problem, self.settings = session, session.problem, settings
        self.optimizer, self.schedule, self.plateau = optimizer, schedule, plateau
        self.done = 0
        self.damping = 1.0  # times the step size, after steps that had to be taken back
        self.best = (math.inf, 0.0)  # the lowest objective per point so far, and its standard error
        self.best_point = session.problem.point
        self.risen = 0  # steps in a row that were clearly higher
        self.converged_at: int | None = None
        self.resumed = session.resumed is not None  # and no step has been taken since
        if session.resumed is not None:
            with session.restoring():
                self._load(session.resumed)

    def run(self) -> Outcome:
        if self.done == 0:
            self.session.save(0, self._state())
        while self.done < self.schedule.end:
            try:
                stop = self._step()
            except NoWayOnError as obstacle:
                return replace(self._outcome(FitStatus.LIMIT, f"ended: {obstacle}"), final=False)
            self.session.keep(self.done, self._state())
            self._look_for_a_plateau()
            if stop:
                self.session.save(self.done, self._state())
                return replace(self._outcome(FitStatus.STOPPED, "the callback asked to stop"), final=False)
            if self.session.due(self.done) and self.done < self.schedule.end:
                self.session.save(self.done, self._state())
        return self._end()

    def _step(self) -> bool:
        rate = self.schedule.rate(self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else rate * self.damping
        first: list[tuple[Row, Evaluation]] = []
        evaluating = [False]

        def closure() -> float:
            evaluating[0] = True
            found = self.problem.evaluate()  # raises before a gradient that is not finite can be applied
            evaluating[0] = False
            if not first:
                rate = float(self.optimizer.param_groups[0]["lr"])
                first.append((self.session.row(self.done, found, rate), found))
            return found.objective

        while True:
            point = self.problem.point
            try:
                self.optimizer.step(closure)
                self.problem.advance()
                break
            except (RankError, DisagreementError):
                raise
            except Exception as error:
                if not evaluating[0] and self.resumed:
                    with self.session.restoring():  # the optimiser cannot use the state that it was given
                        raise
                if not isinstance(error, RTGPError):
                    raise
                self._recover(error, point)
        self.resumed = False
        steps = self.schedule.end
        self.done += 1
        row, found = first[0]
        if self.schedule.kind == "cosine":  # a user's optimiser, and the paper's schedule, are left alone
            self._watch(found, point)
        return self.session.record(row, steps)

    def _watch(self, found: Evaluation, point: Tensor) -> None:
        """Go back to the best point so far where the objective has clearly risen for some steps. `found` belongs to
        `point`.
        """
        error = found.stats.value_error / self.problem.n
        error = 0.0 if math.isnan(error) else error
        best, its_error = self.best
        if found.objective <= best:
            self.best, self.best_point, self.risen = (found.objective, error), point, 0
            return
        settings = self.settings
        clear = found.objective - best > settings.rise + settings.sigmas * math.hypot(error, its_error)
        self.risen = self.risen + 1 if clear else 0
        if self.risen >= settings.in_a_row and self.damping >= settings.least_damping:
            self.problem.move_to(self.best_point)
            self._slow_down()
            self.risen = 0

    def _recover(self, error: RTGPError, point: Tensor) -> None:
        """Go on after a step that could not be computed.

        Either something can be changed at that point, or training goes on from the point before, with smaller steps.
        The parameters are already those of the last good step.
        """
        exhausted = self.damping < self.settings.least_damping
        if overcome(self.problem, error, last_resort=self.done == 0 or exhausted):
            if bool(torch.isfinite(point).all()):
                self.problem.move_to(point)
            return
        if self.done == 0:
            raise error
        if isinstance(error, OutOfMemoryError) or exhausted:
            raise NoWayOnError(str(error)) from error
        self._slow_down()

    def _slow_down(self) -> None:
        self.damping *= 0.5
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5
        self.optimizer.state.clear()  # moments that led here

    def _look_for_a_plateau(self) -> None:
        if self.plateau is None or self.converged_at is not None or self.schedule.decaying(self.done):
            return
        if self.plateau.met(self._losses()):
            self.converged_at = self.done
            if self.schedule.kind == "cosine":
                self.schedule.decay_now(self.done)
            else:
                self.schedule.end = self.done

    def _losses(self) -> list[float]:
        return [float(loss) for loss in self.session.history.column("loss")]

    def _end(self) -> Outcome:
        if self.converged_at is not None:
            assert self.plateau is not None
            message = (
                f"converged: at step {self.converged_at} the fall of the mean loss over {self.plateau.window} steps "
                f"was, at two standard errors, below {self.plateau.tolerance:.0e} per point"
            )
            if self.schedule.kind == "cosine":
                message += "; the step size then fell to zero"
            return self._outcome(FitStatus.CONVERGED, message)
        message = f"all {self.done} steps were taken"
        if self.plateau is not None:
            message += f"; {self.plateau.words(self._losses())}"
        return self._outcome(FitStatus.STEPS, message)

    def _outcome(self, status: FitStatus, message: str) -> Outcome:
        return Outcome(status, self.done, message, self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "converged_at": self.converged_at,
            "decay_from": self.schedule.decay_from,
            "end": self.schedule.end,
            "damping": self.damping,
            "best": self.best[0],
            "best_error": self.best[1],
            "best_point": self.best_point,
            "risen": self.risen,
            "optimizer": self.optimizer.state_dict(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.done, converged = int(state["done"]), state["converged_at"]
        self.damping = min(max(float(state.get("damping", 1.0)), 0.5 * self.settings.least_damping), 1.0)
        self.converged_at = None if converged is None else int(converged)
        # Version 0.1 had none of these.
        self.best = (float(state.get("best", math.inf)), float(state.get("best_error", 0.0)))
        self.risen = int(state.get("risen", 0))
        known = self.best_point
        self.best_point = saved_tensor({"best_point": known, **state}, "best_point", tuple(known.shape), known.dtype)
        if math.isnan(self.best[0]) or not self.best[1] >= 0.0 or self.risen < 0:
            raise ValueError(f"best objective {self.best}, risen {self.risen} times")
        decay_from, end = int(state["decay_from"]), int(state["end"])
        self._check_optimizer(state["optimizer"])
        latest = end if self.schedule.kind == "cosine" else self.schedule.steps
        if not (0 <= self.done <= end <= self.schedule.steps and 0 <= decay_from <= latest):
            raise ValueError(f"step {self.done} of {end}, where {self.schedule.steps} were asked for")
        self.schedule.decay_from, self.schedule.end = decay_from, end
        self.optimizer.load_state_dict(state["optimizer"])

    def _check_optimizer(self, saved: dict[str, Any]) -> None:
        """Finite tensors, and the settings that this optimiser has, but for the step size, which changes."""
        for entries in saved["state"].values():
            for name, value in entries.items():
                if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
                    raise ValueError(f"'{name}' of the optimiser holds NaN or infinity")
        own = self.optimizer.state_dict()["param_groups"]
        for mine, other in zip(own, saved["param_groups"], strict=True):
            different = [name for name in mine if name != "lr" and mine[name] != other.get(name)]
            if different:
                raise ValueError(f"the optimiser's {', '.join(different)} differ")
