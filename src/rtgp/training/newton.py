"""Newton's method for unbiased, noisy gradients, with the average-information matrix in place of the Hessian.

The metric is a function of the parameters alone, refreshed now and then, so that the mean of a step is that of the
gradient; it is multiplied by a number where slopes have changed by more than it says, far beyond their noise. Far from
the optimum the steps are full ones within a box, with a little momentum. Once what a step promises is no more than the
noise of the gradient, as measured in the same run, the k-th step is divided by k: the parameters are then the mean of k
independent Newton estimates of the optimum, and the noise averages out.

Such small steps may trail behind: they began too early, or the objective is not a parabola. No single gradient tells,
but the mean of the last k / 2 of them has k / 2 times less noise. Where a Newton step by this mean promises more than
its noise it is taken, as a whole, and training does not end before it promises no more than the tolerance.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtgp.distributed.errors import DisagreementError, RankError
from rtgp.errors import OutOfMemoryError, RTGPError
from rtgp.training.outcome import NoWayOnError, Outcome, combined
from rtgp.training.problem import Evaluation
from rtgp.training.result import FitStatus
from rtgp.training.session import Session

MOST_PARAMETERS = 200  # each costs a solve in every refresh of the metric
_REFRESH = 3  # steps for which a metric is used
_SOLVE_TOLERANCE = 0.03  # of the metric's solves; with 0.1 some starts far away are lost
_REACH = 1.0  # how far a coordinate (a logarithm) may move in one step
_REGROWTH = 1.5  # of that reach with every good step, after it had to be halved
_LEAST_REACH = 1e-2  # below it a failure is not the step's fault
_MOMENTUM = 0.3
_STIFFEST = 4.0  # that the Hessian is believed to be, in units of the information matrix
_CLEARLY = 3.0  # times the noise: what a step must promise to count as progress
_PATIENCE = 60  # settled steps: noise that needs more to be averaged out is too much
_LEAST_SETTLED = 3  # steps without clear progress before training may end
_NOISE_SHARE = 0.5  # of the tolerance: what the noise left may cost in the mean; some runs end twice as far off
_RECENT = 5  # steps over which the noise is averaged
_PIVOTS = 2000  # of a step in a box: far more than it takes
# Of the tolerance: what a step along a ridge must promise. There the information matrix promises a thirtieth of what
# there is to gain (elevators, n = 10,623: 1.8e-5 where .0005 were left).
_RIDGE_SHARE = 0.02
_CHECKED = 4  # independent estimates at the end
_ROUNDS = 3  # of checks, each followed by steps along a ridge where they promise more
_RIDGE_STEPS = 15  # in a round
_DAMPING = 0.1  # of the curvature along a step: what is left of it at the least after an update
_SIGMAS = 4.0  # by which the loss must have risen for a step to be taken back


def descend_newton(session: Session, steps: int, tolerance: float, more_if_exact: int = 0) -> Outcome:
    """Train until a step promises no more than `tolerance` per point and the noise costs no more than half of it, or
    `steps` are taken; `more_if_exact` further ones where gradients have no noise, for what is left is sure."""
    return _Newton(session, steps, tolerance, more_if_exact).run()


def box_newton_step(metric: Tensor, gradient: Tensor, reach: float) -> Tensor:
    """The minimiser of gradient^T s + s^T metric s / 2 over |s_i| <= reach.

    A coordinate that runs into its bound leaves the others the best step that this allows.
    """
    from scipy.optimize import lsq_linear

    scale = metric.diagonal().clamp_min(max(1e-12 * float(metric.diagonal().max()), 1e-200)).rsqrt()
    eigenvalues, vectors = torch.linalg.eigh(metric * scale * scale[:, None])
    root = eigenvalues.clamp_min(1e-8).sqrt()
    left = (root[:, None] * vectors.T) / scale  # left^T left = metric
    right = -(vectors.T @ (scale * gradient)) / root
    bound = np.full(len(gradient), reach)
    # Where the metric is singular `right` is large, and a tolerance relative to it would end the search early.
    found = lsq_linear(left.numpy(), right.numpy(), (-bound, bound), method="bvls", tol=1e-20, max_iter=_PIVOTS)
    return torch.from_numpy(found.x)


def damped_bfgs(metric: Tensor, step: Tensor, change: Tensor) -> Tensor:
    """The metric after a step along which the gradient has changed by `change` (Powell 1978: positive definite whatever
    the change)."""
    image = metric @ step
    own, seen = float(step @ image), float(step @ change)
    if own <= 0.0:
        return metric
    if seen < _DAMPING * own:
        part = (1.0 - _DAMPING) * own / (own - seen)
        change = part * change + (1.0 - part) * image
        seen = _DAMPING * own
    return metric - torch.outer(image, image) / own + torch.outer(change, change) / seen


def _positive(information: Tensor) -> Tensor:
    """Without what its solves have made negative, where they ended early."""
    eigenvalues, vectors = torch.linalg.eigh(information)
    positive: Tensor = (vectors * eigenvalues.clamp_min(0.0)) @ vectors.T
    return positive


class _Newton:
    def __init__(self, session: Session, steps: int, tolerance: float, more_if_exact: int) -> None:
        self.session, self.problem = session, session.problem
        self._most, self.tolerance = (steps, steps + more_if_exact), tolerance
        self.worth = _RIDGE_SHARE * tolerance  # what a step along a ridge must promise
        self.done = 0
        self.settled = 0  # steps since progress was lost in the noise
        self.reach = _REACH
        self.stiffness = 1.0  # times the metric: the curvature that has been felt
        self.gains: list[float] = []  # what each step promised, per point
        self.noises: list[float] = []  # what the noise of each gradient alone would have promised
        self.points: list[Tensor] = []  # where the settled steps began, and what they saw, since the last whole step
        self.gradients: list[Tensor] = []
        self.final: list[Evaluation] = []  # at the end, by independent draws
        self.loss = (float("inf"), 0.0)  # the objective at the last accepted point, and its standard error
        self.accepted = self.problem.point
        self.gradient = torch.zeros_like(self.accepted)  # there
        self.velocity = torch.zeros_like(self.accepted)
        self.metric = torch.diag(torch.ones_like(self.accepted))
        if session.resumed is not None:
            with session.restoring():
                self._load(session.resumed)

    @property
    def steps(self) -> int:
        """That may be taken."""
        return self._most[self.problem.exact]

    def run(self) -> Outcome:
        if self.done == 0:
            self.session.save(0, self._state())
        while self.done < self.steps:
            try:
                stop = self._step()
            except NoWayOnError as obstacle:
                return replace(self._outcome(FitStatus.LIMIT, f"ended: {obstacle}"), final=False)
            if stop:
                self.session.save(self.done, self._state())
                return replace(self._outcome(FitStatus.STOPPED, "the callback asked to stop"), final=False)
            self.session.keep(self.done, self._state(), self.accepted)
            if self._finished() and self._confirmed():
                self.session.final = combined([(one.loss, self._error(one)) for one in self.final])
                return self._outcome(FitStatus.CONVERGED, f"converged: {self._words()}")
            if self.session.due(self.done):
                self.session.save(self.done, self._state())
        back = ", the last back again" if self._last_is_worse() else ""
        return self._outcome(FitStatus.STEPS, f"all {self.steps} steps were taken{back}; {self._words()}")

    def _last_is_worse(self) -> bool:
        """Nothing has been computed where the last step led: back from there if it is clearly the worse."""
        try:
            found = self.problem.evaluate()
            worse = not math.isnan(found.stats.value_error) and self._rose(found)
        except (RankError, DisagreementError):
            raise
        except RTGPError:
            worse = True
        if worse:
            self.problem.move_to(self.accepted)
        return worse

    def _evaluate(self) -> Evaluation:
        """At the current point, or where that fails between it and the last that was good."""
        # Among settled steps a metric is made anew where a whole step has led.
        refresh = not self.points if self.settled >= _LEAST_SETTLED else self.done % _REFRESH == 0
        while True:
            point, exact = self.problem.point, self.problem.exact
            try:
                return self.problem.evaluate(contrast=True, information=_SOLVE_TOLERANCE if refresh else None)
            except (RankError, DisagreementError):
                raise
            except RTGPError as error:
                exhausted = self.reach < _LEAST_REACH
                if self.problem.overcome(error, last_resort=self.done == 0 or exhausted):
                    self.problem.move_to(point)
                    if self.problem.exact != exact:
                        self._start_exact()
                        refresh = True
                elif self.done == 0:
                    raise
                elif isinstance(error, OutOfMemoryError) or exhausted:
                    self.problem.move_to(self.accepted)
                    raise NoWayOnError(str(error)) from error
                else:
                    self._go_back()

    def _start_exact(self) -> None:
        """There is no noise any more."""
        self.settled, self.noises = 0, []
        self._forget()

    def _step(self) -> bool:
        found = self._evaluate()
        row = self.session.row(self.done, found, 1.0 / max(1, self.settled))
        self.done += 1
        if found.information is not None:
            # A coordinate whose whole promise is below the tolerance is not worth moving: an input that does not matter
            # would send its lengthscale to infinity.
            self.metric = _positive(found.information) + self.tolerance * torch.eye(len(self.accepted)).double()
        self._feel_stiffness(found)
        if self._rose(found):
            self._go_back()
        else:
            self._go_on(found)
        stop = self.session.record(row, self.steps)
        needed = self._noise() / (_NOISE_SHARE * self.tolerance) if self.tolerance and self.settled else 0.0
        if self.problem.consider_cholesky(self.steps - self.done, needed > max(self.steps, _PATIENCE)):
            self._start_exact()
        return stop

    def _rose(self, found: Evaluation) -> bool:
        """Whether the objective did since the last accepted point, by more than its noise and the tolerance: by its
        values, or by the slopes at both ends of the way, which are the less noisy where a run is cut short."""
        loss, error = self.loss
        # Among small steps, one value that is low by chance, with an error not known, would keep all others away.
        judged = self.settled == 0 or not math.isnan(found.stats.value_error)
        if judged and found.objective - loss > _SIGMAS * math.hypot(error, self._error(found)) + self.tolerance:
            return True
        way = self.problem.point - self.accepted
        rise = 0.5 * float((self.gradient + found.gradient) @ way)
        return rise > _SIGMAS * self._slope_noise(found, way) + self.tolerance

    def _slope_noise(self, found: Evaluation, way: Tensor) -> float:
        """Of half the sum, or difference, of two slopes g^T s along a way s: at most that of g in the metric, twice
        what it promises, times the length of s in it."""
        own = 0.0 if found.contrast is None else self._promised(found.contrast)
        return math.sqrt(max(self._noise(), own) * float(way @ self.metric @ way))

    def _promised(self, gradient: Tensor) -> float:
        """By a Newton step within the whole box, however short steps are just now."""
        return -0.5 * float(gradient @ box_newton_step(self.metric, gradient, _REACH))

    def _feel_stiffness(self, found: Evaluation) -> None:
        """How much steeper the slope has become on the way from the last accepted point than the information matrix
        says: with little noise in the data that may be half of the Hessian, and full steps would go to and fro."""
        way = self.problem.point - self.accepted
        bend, expected = float((found.gradient - self.gradient) @ way), float(way @ self.metric @ way)
        if bend > 2.0 * _SIGMAS * self._slope_noise(found, way) and expected > self.tolerance:
            self.stiffness = min(max(1.0, math.sqrt(self.stiffness * bend / expected)), _STIFFEST)

    def _newton_step(self, gradient: Tensor) -> Tensor:
        return box_newton_step(self.stiffness * self.metric, gradient, self.reach)

    def _error(self, found: Evaluation) -> float:
        """Of the objective per point; 0 where it is not known: steps are taken back too often then, not too rarely."""
        error = found.stats.value_error / self.problem.n
        return 0.0 if math.isnan(error) else error

    def _go_back(self) -> None:
        """Half of the way to the last accepted point, and smaller steps for a while."""
        self.reach *= 0.5
        self.velocity = 0.5 * self.velocity
        self.problem.move_to(self.accepted + self.velocity)

    def _go_on(self, found: Evaluation) -> None:
        self.accepted, self.gradient = self.problem.point, found.gradient
        self.loss = (found.objective, self._error(found))
        self.gains.append(self._promised(found.gradient))
        if found.contrast is not None:
            self.noises.append(self._promised(found.contrast))
        clear = [gain > max(_CLEARLY * self._noise(), self.tolerance) for gain in self.gains[-2:]]
        if not clear[-1]:
            self.settled += 1
        elif all(clear):  # one alone may be an outlier of the noise
            self.settled = max(0, self.settled - 1)
        step = self._newton_step(found.gradient)
        if self.settled:
            self.velocity = self._settled_step(found.gradient, step)
        else:
            self.velocity = step + _MOMENTUM * self.velocity
            self._forget()
        self.reach = min(_REACH, _REGROWTH * self.reach)
        self.problem.move_to(self.accepted + self.velocity)

    def _settled_step(self, gradient: Tensor, step: Tensor) -> Tensor:
        self.points.append(self.accepted)
        self.gradients.append(gradient)
        count, point, mean = self._averaged()
        if count < _LEAST_SETTLED or self._promised(mean) <= max(_CLEARLY * self._noise() / count, self.tolerance):
            return step / self.settled
        self._forget()
        self.settled = count  # as many have been averaged
        return point + self._newton_step(mean) - self.accepted

    def _averaged(self) -> tuple[int, Tensor, Tensor]:
        """The last half of the settled steps, but three at least if there are: how many, their mean point and mean
        gradient."""
        count = min(len(self.points), max(_LEAST_SETTLED, self.settled // 2))
        point, gradient = (torch.stack(values[-count:]).mean(0) for values in (self.points, self.gradients))
        return count, point, gradient

    def _forget(self) -> None:
        self.points, self.gradients = [], []

    def _noise(self) -> float:
        recent = self.noises[-_RECENT:]
        return sum(recent) / len(recent) if recent else 0.0

    def _promise(self) -> float:
        """What the mean of the last settled gradients promises beyond its noise; the last gradient, before there are
        any."""
        if not self.points:
            return max(0.0, self.gains[-1] - self._noise())
        count, _, mean = self._averaged()
        return max(0.0, self._promised(mean) - self._noise() / count)

    def _finished(self) -> bool:
        if self.settled < _LEAST_SETTLED or len(self.points) < _LEAST_SETTLED:
            return False
        return self._noise() / self.settled / _NOISE_SHARE <= self.tolerance and self._promise() <= self.tolerance

    def _confirmed(self) -> bool:
        """Whether independent draws at the point that training would end at promise no more than the tolerance. If not,
        training goes on from where they lead.

        The information matrix may be many times the Hessian along a ridge, and a Newton step then promises a fraction
        of what there is to gain. So where the draws clearly promise something, the ridge is followed with these draws
        held fixed, and its end is looked at with new ones.
        """
        # Fixed draws have no noise between them that could move what does not matter: less keeps it in its place.
        metric = self.metric - (self.tolerance - self.worth) * torch.eye(len(self.accepted)).double()

        def promised(gradient: Tensor) -> float:
            return -0.5 * float(gradient @ box_newton_step(metric, gradient, _REACH))

        for left in reversed(range(_ROUNDS)):
            here = self.problem.point
            seeds = [self.problem.draw_seed() for _ in range(_CHECKED if self.noises else 1)]
            found = self._at(here, seeds)
            if found is None:
                return True  # as good as can be told
            self.final = found
            gradient = torch.stack([one.gradient for one in found]).mean(0)
            contrasts = [promised(one.contrast) for one in found if one.contrast is not None]
            noise = sum(contrasts) / len(contrasts) if contrasts else 0.0  # of one
            if promised(gradient) <= max(_CLEARLY * noise / len(found), self.worth if left else self.tolerance):
                return True
            enough = min(len(seeds), max(1, math.ceil(noise / self.worth)))  # draws whose noise is not worth a step
            self._follow_the_ridge(here, seeds[:enough], metric)
        # Still on its way: from there on by noisy steps again.
        self.accepted, self.velocity = self.problem.point, torch.zeros_like(self.accepted)
        self.loss, self.settled = (math.inf, 0.0), 0
        self._forget()
        return False

    def _follow_the_ridge(self, point: Tensor, seeds: list[int], metric: Tensor) -> None:
        """Quasi-Newton steps (damped BFGS, from the metric) on the objective of fixed draws, whose gradients have no
        noise between them; only slopes decide, for values have. Ends where a step is not worth taking."""
        reach, gradient = _REACH, self._mean_gradient(point, seeds)
        for _ in range(_RIDGE_STEPS):
            if gradient is None:
                break
            step = box_newton_step(metric, gradient, reach)
            if -0.5 * float(gradient @ step) <= self.worth or reach < _LEAST_REACH:
                break
            there = self._mean_gradient(point + step, seeds)
            if there is None:
                reach *= 0.5
                continue
            metric = damped_bfgs(metric, step, there - gradient)
            if float((gradient + there) @ step) > 0.0:  # it went up, by the slopes at both ends
                reach *= 0.5
            else:
                point, gradient = point + step, there
        self.problem.move_to(point)

    def _mean_gradient(self, point: Tensor, seeds: list[int]) -> Tensor | None:
        found = self._at(point, seeds)
        return None if found is None else torch.stack([one.gradient for one in found]).mean(0)

    def _at(self, point: Tensor, seeds: list[int]) -> list[Evaluation] | None:
        """Estimates at a point, one for each seed; None where it cannot be computed."""
        try:
            self.problem.move_to(point)
            return [self.problem.evaluate_with(seed, contrast=True) for seed in seeds]
        except (RankError, DisagreementError):
            raise
        except RTGPError:
            self.problem.move_to(point)
            return None

    def _words(self) -> str:
        if not self.gains:
            return "no step was good"
        return (
            f"a further Newton step promises {self._promise():.0e} per point, and the noise that is left, averaged "
            f"over {max(1, self.settled)} steps, costs about {self._noise() / max(1, self.settled):.0e}"
        )

    def _outcome(self, status: FitStatus, message: str) -> Outcome:
        return Outcome(status, self.done, message, self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "settled": self.settled,
            "reach": self.reach,
            "stiffness": self.stiffness,
            "gains": self.gains,
            "noises": self.noises,
            "loss": self.loss[0],
            "loss_error": self.loss[1],
            "accepted": self.accepted,
            "gradient": self.gradient,
            "velocity": self.velocity,
            "metric": self.metric,
            "points": self._stacked(self.points),
            "gradients": self._stacked(self.gradients),
        }

    def _stacked(self, vectors: list[Tensor]) -> Tensor:
        return torch.stack(vectors) if vectors else self.accepted.new_zeros(0, len(self.accepted))

    def _load(self, state: dict[str, Any]) -> None:
        self.done, self.settled, self.reach = int(state["done"]), int(state["settled"]), float(state["reach"])
        self.stiffness = float(state.get("stiffness", 1.0))  # an older version had none, and no gradient
        state = {"gradient": self.gradient, **state}
        self.gains, self.noises = list(map(float, state["gains"])), list(map(float, state["noises"]))
        self.loss = (float(state["loss"]), float(state["loss_error"]))
        if any(map(math.isnan, (*self.gains, *self.noises, *self.loss))):
            raise ValueError("gains, noises or the loss hold NaN")
        p, count = len(self.accepted), len(state["points"])
        shapes = {"accepted": (p,), "gradient": (p,), "velocity": (p,), "metric": (p, p)}
        shapes |= {"points": (count, p), "gradients": (count, p)}
        found = {name: state[name] for name in shapes}
        for name, shape in shapes.items():
            tensor = found[name]
            if (tensor.shape, tensor.dtype) != (shape, torch.float64) or not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"{name} of shape {tuple(tensor.shape)}, or not finite")
        sizes = 0.0 < self.reach <= _REACH and 1.0 <= self.stiffness <= _STIFFEST
        if not (0 <= self.done <= self.steps and self.settled >= 0 and sizes):
            raise ValueError(f"step {self.done} of {self.steps}, reach {self.reach}, stiffness {self.stiffness}")
        self.accepted, self.gradient = found["accepted"], found["gradient"]
        self.velocity, self.metric = found["velocity"], found["metric"]
        self.points, self.gradients = (list(found[name]) for name in ("points", "gradients"))
