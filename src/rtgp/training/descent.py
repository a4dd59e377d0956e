"""Torch optimisers on a noisy objective: a step size that falls to zero averages the noise out.

Averaging the last iterates on top of it was measured and changed nothing (less than 3e-5 per point, also at one probe).
"""

from __future__ import annotations

from typing import Any

import torch

from rtgp.training.history import Row
from rtgp.training.outcome import Outcome
from rtgp.training.result import FitStatus
from rtgp.training.schedule import Schedule
from rtgp.training.session import Session
from rtgp.training.stopping import Plateau


def descend(session: Session, optimizer: torch.optim.Optimizer, schedule: Schedule, plateau: Plateau | None) -> Outcome:
    """Train until the criterion is met, the steps are used up or the callback stops it."""
    return _Descent(session, optimizer, schedule, plateau).run()


class _Descent:
    def __init__(
        self, session: Session, optimizer: torch.optim.Optimizer, schedule: Schedule, plateau: Plateau | None
    ) -> None:
        self.session, self.problem = session, session.problem
        self.optimizer, self.schedule, self.plateau = optimizer, schedule, plateau
        self.done = 0
        self.converged_at: int | None = None
        self.resumed = session.resumed is not None  # and no step has been taken since
        if session.resumed is not None:
            with session.restoring():
                self._load(session.resumed)

    def run(self) -> Outcome:
        if self.done == 0:
            self.session.save(0, self._state())
        while self.done < self.schedule.end:
            stop = self._step()
            self._look_for_a_plateau()
            if stop:
                self.session.save(self.done, self._state())
                return self._outcome(FitStatus.STOPPED, "the callback asked to stop")
            if self.session.due(self.done) and self.done < self.schedule.end:
                self.session.save(self.done, self._state())
        return self._end()

    def _step(self) -> bool:
        rate = self.schedule.rate(self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else rate
        first: list[Row] = []
        evaluating = [False]

        def closure() -> float:
            evaluating[0] = True
            found = self.problem.evaluate()  # raises before a gradient that is not finite can be applied
            evaluating[0] = False
            if not first:
                rate = float(self.optimizer.param_groups[0]["lr"])
                first.append(self.session.row(self.done, found, rate))
            return found.objective

        try:
            self.optimizer.step(closure)
        except Exception:
            if evaluating[0] or not self.resumed:
                raise
            with self.session.restoring():  # the optimiser cannot work with the state that it was given
                raise
        self.resumed = False
        self.problem.advance()
        steps = self.schedule.end
        self.done += 1
        return self.session.record(first[0], steps)

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
            "optimizer": self.optimizer.state_dict(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.done, converged = int(state["done"]), state["converged_at"]
        self.converged_at = None if converged is None else int(converged)
        decay_from, end = int(state["decay_from"]), int(state["end"])
        latest = end if self.schedule.kind == "cosine" else self.schedule.steps
        if not (0 <= self.done <= end <= self.schedule.steps and 0 <= decay_from <= latest):
            raise ValueError(f"step {self.done} of {end}, where {self.schedule.steps} were asked for")
        self.schedule.decay_from, self.schedule.end = decay_from, end
        self.optimizer.load_state_dict(state["optimizer"])
