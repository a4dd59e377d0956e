"""SciPy's L-BFGS-B on a deterministic objective, in float64.

It is resumed by replay: the checkpoint holds every point that was evaluated with its value and gradient, and the
algorithm, which is deterministic, runs through them again at no cost. Another kind of processor rounds its dot products
otherwise, and comes to points that differ in their last digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rtgp._ownership import without_frames
from rtgp._state import saved_count
from rtgp.distributed._errors import DisagreementError, RankError
from rtgp.errors import NotPositiveDefiniteError, OutOfMemoryError, RTGPError
from rtgp.training._errors import CheckpointError
from rtgp.training._evaluation import Evaluation
from rtgp.training._obstacles import overcome
from rtgp.training._outcome import Outcome
from rtgp.training._problem import Problem
from rtgp.training._result import FitStatus
from rtgp.training._session import Session

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LBFGSSettings:
    """How L-BFGS moves and when it ends. Chosen, not fitted.

    Attributes
    ----------
    tolerance : float
        Relative decrease of a step at which a training ends, by default.
    gradient_tolerance : float
        Largest entry of the gradient at which it ends.
    memory : int
        Pairs of steps and gradients that it keeps.
    evaluations_per_step : int
        The largest number on average.
    penalty : float
        Added to the worst value seen, per point. It sends the line search back from where K is not positive definite.
    restarts : int
        How often it starts again with an empty memory after a line search has failed.
    same : float
        Distance of a point from the recorded one, in parts of its largest entry, up to which the record holds for it.
    """

    tolerance: float = 1e-8
    gradient_tolerance: float = 1e-6
    memory: int = 20
    evaluations_per_step: int = 100
    penalty: float = 10.0
    restarts: int = 1
    same: float = 1e-6


DEFAULT = LBFGSSettings()


class Surface:
    """The objective as a function of one vector, remembering all evaluations."""

    def __init__(self, problem: Problem, settings: LBFGSSettings = DEFAULT) -> None:
        self.problem, self.settings = problem, settings
        self.points: list[Array] = []
        self.values: list[float] = []
        self.gradients: list[Array] = []
        self.failure: RTGPError | None = None  # of an evaluation since the last accepted point
        self._failures: dict[int, RTGPError] = {}
        self._known = 0
        self._seen: dict[bytes, int] = {}
        self._evaluations: dict[int, Evaluation] = {}

    def x(self) -> Array:
        flat = torch.cat([leaf.detach().reshape(-1).double() for leaf in self.problem.leaves])
        result: Array = flat.cpu().numpy().copy()
        return result

    def move_to(self, x: Array) -> None:
        vector, begin = torch.from_numpy(x), 0
        values: list[Tensor] = []
        for leaf in self.problem.leaves:
            values.append(vector[begin : begin + leaf.numel()].reshape(leaf.shape))
            begin += leaf.numel()
        self.problem.restore(values)

    def __call__(self, x: Array) -> tuple[float, Array]:
        key = x.tobytes()
        if key not in self._seen:  # SciPy asks for its start twice
            replay = len(self._seen) < self._known
            self._seen[key] = self._replay(x) if replay else self._evaluate(x)
        k = self._seen[key]
        self.failure = self._failures.get(k, self.failure)
        return self.values[k], self.gradients[k].copy()

    def forget(self) -> None:
        """Evaluate again where that has been done already, with nothing kept from elsewhere."""
        self._seen.clear()
        self.problem.mll.release()

    def evaluation(self, x: Array) -> Evaluation:
        """The estimate at a point that the algorithm has accepted, with the model there."""
        self.move_to(x)
        found = self._evaluations.get(self._seen[x.tobytes()])
        return self.problem.evaluate() if found is None else found

    def _evaluate(self, x: Array) -> int:
        self.move_to(x)
        k = len(self.values)
        try:
            self._evaluations[k] = self._evaluated()
            value = self._evaluations[k].objective
            grads = [leaf.grad.reshape(-1).double() for leaf in self.problem.leaves if leaf.grad is not None]
            gradient = torch.cat(grads).cpu().numpy().copy()
        except OutOfMemoryError as error:  # not the point's fault
            if not self.values:
                raise
            raise _NoMemoryError(str(error)) from error
        except (RankError, DisagreementError):
            raise
        except RTGPError as error:
            if not self.values:
                raise
            value, gradient = max(self.values) + self.settings.penalty, np.zeros_like(x)
            self._failures[k] = without_frames(error)
        self.points.append(x.copy())
        self.values.append(value)
        self.gradients.append(gradient)
        return k

    def _evaluated(self) -> Evaluation:
        """Evaluate a point. At the start, or for want of memory, a failure is tried again with what can be changed.

        Anywhere else the surface must stay the same.
        """
        point, first = self.problem.point, not self.values
        while True:
            try:
                return self.problem.evaluate()
            except RTGPError as error:
                changeable = first or isinstance(error, OutOfMemoryError)
                if not (changeable and overcome(self.problem, error, last_resort=first)):
                    raise
                self.problem.move_to(point)

    def _replay(self, x: Array) -> int:
        k = len(self._seen)
        recorded = self.points[k]
        if not float(np.abs(x - recorded).max()) <= self.settings.same * (1.0 + float(np.abs(recorded).max())):
            raise CheckpointError(
                "L-BFGS takes another path than the checkpoint records, as another version of SciPy may: "
                "remove the checkpoint folder to start again."
            )
        if k == 0 and not self.problem.exact:
            # Frozen random draws and the preconditioner are made in the first evaluation.
            self.problem.rewind()
            self.move_to(x)
            self.problem.evaluate()
        return k

    def state_dict(self) -> dict[str, Any]:
        return {
            "points": torch.from_numpy(np.stack(self.points)),
            "values": list(self.values),
            "gradients": torch.from_numpy(np.stack(self.gradients)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        points, gradients, values = state["points"], state["gradients"], list(map(float, state["values"]))
        size = (len(values), len(self.x()))
        for tensor in (points, gradients):
            if tuple(tensor.shape) != size or tensor.dtype != torch.float64 or not bool(torch.isfinite(tensor).all()):
                raise ValueError(
                    f"points or gradients of shape {tuple(tensor.shape)}, expected {size}, finite, float64"
                )
        if not values or not all(map(math.isfinite, values)):
            raise ValueError("no values, or some that are not finite")
        self.points, self.gradients = list(points.numpy()), list(gradients.numpy())
        self.values, self._known = values, len(values)


class _StopError(Exception):
    """The callback asked to stop."""


class _NoMemoryError(Exception):
    """Memory ran out after the first evaluation."""


def minimise(
    surface: Surface,
    start: Array,
    steps: int,
    tolerance: float,
    accepted: Callable[[Array], None],
    bounds: list[tuple[float, float]] | None = None,
) -> tuple[FitStatus, str]:
    """Run L-BFGS-B. The parameters end at the last accepted point. How it ended is returned, with words.

    An evaluation that fails ends it. Where the likelihood grows without end (a target that the inputs determine), every
    training reaches a matrix that is not positive definite. At the start a failure is an error.
    """
    from scipy.optimize import minimize

    taken, last, settings = 0, start, surface.settings
    met: RTGPError | None = None  # on the way to the last accepted point

    def count(x: Array) -> None:
        nonlocal taken, last, met
        taken += 1
        if not np.array_equal(x, last):  # SciPy may report that it stayed where it was
            met, surface.failure = surface.failure, None
        last = x.copy()
        accepted(x)

    for _ in range(1 + settings.restarts):
        met = surface.failure = None
        options = {
            "maxiter": steps - taken,
            "maxfun": settings.evaluations_per_step * steps,
            "ftol": tolerance,
            "gtol": settings.gradient_tolerance,
            "maxcor": settings.memory,
        }
        try:
            found = minimize(
                surface, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=count, options=options
            )
        except _NoMemoryError as error:
            surface.move_to(last)
            return FitStatus.LIMIT, f"a further step fails. {error}"
        start = found.x
        # A step that an obstacle has cut short is small without an end being near.
        surface.failure = surface.failure or met
        # 1: the steps are used up; 2: the line search failed. After a failed evaluation 0 is no convergence either.
        if found.status == 1 or (found.status == 0 and surface.failure is None) or taken >= steps:
            break
    surface.move_to(found.x)
    if found.status != 1 and surface.failure is not None:
        return FitStatus.LIMIT, f"a further step fails. {surface.failure}"
    if found.status == 2:
        return FitStatus.CONVERGED, "no lower point was found by the line search, at the limit of the working precision"
    if found.status == 1:
        return FitStatus.STEPS, "the steps were used up"
    small = "the gradient" if "GRADIENT" in str(found.message) else "the relative decrease of a step"
    return FitStatus.CONVERGED, f"{small} fell below its tolerance"


def train_lbfgs(session: Session, steps: int, tolerance: float, settings: LBFGSSettings = DEFAULT) -> Outcome:
    """Train a model with recording, callbacks and checkpoints."""
    return _Training(session, steps, tolerance, session.resumed, None, settings).run()


def go_on_by_lbfgs(
    session: Session,
    steps: int,
    tolerance: float,
    before: int,
    settings: LBFGSSettings = DEFAULT,
    resumed: dict[str, Any] | None = None,
) -> Outcome:
    """Go on from where the problem is, after another optimiser has taken `before` steps. `steps` counts those of both.

    `resumed` is the saved state of L-BFGS, where a checkpoint holds one.
    """
    return _Training(session, steps - before, tolerance, resumed, before, settings).run()


def steps_before(resumed: dict[str, Any] | None) -> int | None:
    """How many steps another optimiser took, if a checkpoint is of L-BFGS that went on after it."""
    return None if resumed is None or "before" not in resumed else saved_count(resumed, "before")


class _Training:
    """One training by L-BFGS.

    Parameters
    ----------
    before : int
        Steps that another optimiser has taken. The point where L-BFGS begins then counts as a step.
    """

    def __init__(
        self,
        session: Session,
        steps: int,
        tolerance: float,
        resumed: dict[str, Any] | None,
        before: int | None,
        settings: LBFGSSettings,
    ) -> None:
        self.session, self.surface, self.tolerance = session, Surface(session.problem, settings), tolerance
        self.before, self.first = before or 0, int(before is not None)
        self.most = steps - self.first
        self.start = self.surface.x()
        if resumed is not None:
            with session.restoring():
                self.surface.load_state_dict(resumed)
                self.start = self.surface.points[0].copy()
        self.known = len(session.history) - self.before  # rows
        if self.known < 0:
            with session.restoring():
                raise ValueError(f"{self.before} steps of another optimiser, of which {-self.known} rows are missing")
        self.rows = 0

    @property
    def done(self) -> int:
        """Steps, of the other optimiser too."""
        return self.before + self.first + self.rows - 1

    def run(self) -> Outcome:
        surface = self.surface
        surface(self.start)
        try:
            if self.known:
                self.rows = 1
            else:
                self._accept(self.start)
            status, words = minimise(surface, self.start, self.most, self.tolerance, self._accept)
        except _StopError:
            return Outcome(FitStatus.STOPPED, self.done + 1, "the callback asked to stop", self._state(), final=False)
        evaluations = f"{self.rows - 1} steps, {len(surface.values)} evaluations"
        if self.before:
            evaluations += f" after {self.before} other steps"
        message = f"{'converged' if status is FitStatus.CONVERGED else 'ended'} by L-BFGS in {evaluations}: {words}"
        final = status is not FitStatus.LIMIT or isinstance(surface.failure, NotPositiveDefiniteError)
        return Outcome(status, self.done, message, self._state(), final)

    def _accept(self, x: Array) -> None:
        session, surface = self.session, self.surface
        if self.rows >= self.known:
            found = surface.evaluation(x)
            row = session.row(self.before + self.rows, found, math.nan)
            stop = session.record(row, self.before + self.first + self.most)
            done = self.done + 1
            # Not where an evaluation has failed: a later run would take what stands in for it for a value.
            if (stop or session.due(done)) and surface.failure is None:
                session.save(done, self._state())
            if stop:
                raise _StopError
        self.rows += 1
        session.keep(self.done, self._state() if surface.failure is None else None)

    def _state(self) -> dict[str, Any]:
        return {**self.surface.state_dict(), **({"before": self.before} if self.first else {})}
