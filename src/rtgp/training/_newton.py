"""Newton's method for unbiased, noisy gradients, with the average-information matrix in place of the Hessian.

The metric is a function of the parameters alone and is refreshed now and then, so the mean of a step is the step of the
mean gradient. It is multiplied by a number where slopes change by more than it says, far beyond their noise. Far from
the optimum the steps are full ones within a box, with a little momentum. Once a step promises no more than the noise of
the gradient, as measured in the same run, the k-th step is divided by k. The parameters are then the mean of k
independent Newton estimates of the optimum, and the noise averages out.

Such small steps may trail behind: they began too early, or the objective is not a parabola. No single gradient shows
this, but the mean of the last k / 2 gradients has k / 2 times less noise. Where a Newton step by this mean promises
more than its noise it is taken as a whole. Training does not end before it promises no more than the tolerance.

Everything here is a pure function of settings, state and evaluation. `newton_run` evaluates, records and saves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rtgp.training._evaluation import Evaluation
from rtgp.training._quadratic import box_newton_step, positive, promised


@dataclass(frozen=True)
class NewtonSettings:
    """What decides how Newton's method moves and when it ends.

    Attributes
    ----------
    tolerance : float
        What a further step may promise per point at the end, and twice what the noise left may cost.
    most_parameters : int
        With more parameters "auto" takes another optimiser: each costs a solve in every new metric.
    refresh : int
        Number of steps for which a metric is used.
    solve_tolerance : float
        Tolerance of the metric's solves. With 0.1 some starts far away are lost.
    reach : float
        How far a coordinate (a logarithm) may move in one step.
    regrowth : float
        Factor by which the reach grows with each accepted step, after it was halved.
    least_reach : float
        The smallest reach. Below it a failed evaluation is not the step's fault.
    momentum : float
        Part of the last step that is added to the next.
    stiffest : float
        The largest factor by which the metric is multiplied where slopes change faster than it says.
    clearly : float
        A step is clear progress if it promises this many times the noise.
    patience : int
        Number of settled steps. Noise that needs more of them to average out is too much.
    least_settled : int
        Number of steps without clear progress before training may end.
    noise_share : float
        Part of the tolerance that the noise left may cost in the mean; some runs end twice as far off.
    recent : int
        Number of steps over which the noise is averaged.
    pivots : int
        The largest number of changes of the bound coordinates in one step within a box.
    sigmas : float
        A step is taken back if the loss rises by this many standard errors.
    checked : int
        Number of independent estimates at the end.
    rounds : int
        Number of checks at the end, each followed by steps along a ridge where they promise more.
    ridge_share : float
        Part of the tolerance that a step along a ridge must promise. There the information matrix promises a thirtieth
        of what there is to gain (elevators, n = 10,623: 1.8e-5 where .0005 were left).
    slow_share, slow_steps
        A ridge is left where `slow_steps` accepted steps together gain less than the part `slow_share` of the
        tolerance. A check takes as many draws as make their noise less than that.
    probe_share : float
        Part of the tolerance that a ridge must promise, by the curvature that its first step shows.
    ridge_steps : int
        The largest number of steps along a ridge in one round.
    ridge_reach : float
        How far a coordinate may move in one of them. It begins at `reach`, and doubles where a step that ends there
        gains what the model said, up to the part `ridge_good`; it is halved where a step gains less than `ridge_poor`
        of that. With exact gradients (elevators, 3,000 points, two starts) .0006 and .0012 were followed to 1e-5 in 7
        and 12 steps, where a reach of 1 left .0002 after 15.
    ridge_noise : float
        Factor by which the noise of fixed draws may grow along a ridge. Airports with a Matern-1/2 kernel and 1,000
        points of elevators went far along it, to a higher objective, where draws had become a hundred times noisier.
    ridge_caution : float
        Factor by which steps along a ridge become smaller after a round that led to no lower objective.
    damping : float
        The smallest part of the curvature that an update leaves along a step on a ridge.
    exact_share : float
        Part of the tolerance at whose relative decrease in one step L-BFGS ends, where gradients have become exact:
        1e-8 by default, as in a training by Cholesky.
    """

    tolerance: float = 2e-4
    most_parameters: int = 200
    refresh: int = 3
    solve_tolerance: float = 0.03
    reach: float = 1.0
    regrowth: float = 1.5
    least_reach: float = 1e-2
    momentum: float = 0.3
    stiffest: float = 4.0
    clearly: float = 3.0
    patience: int = 60
    least_settled: int = 3
    noise_share: float = 0.5
    recent: int = 5
    pivots: int = 2000
    sigmas: float = 4.0
    checked: int = 4
    rounds: int = 3
    ridge_share: float = 0.02
    ridge_steps: int = 15
    ridge_reach: float = 8.0
    ridge_good: float = 0.5
    ridge_poor: float = 0.25
    probe_share: float = 0.25
    ridge_noise: float = 4.0
    ridge_caution: float = 0.25
    slow_share: float = 0.1
    slow_steps: int = 3
    damping: float = 0.1
    exact_share: float = 5e-5


@dataclass(frozen=True)
class NewtonState:
    """What lives between two steps. Tensors are float64 on the CPU; p is the number of coordinates."""

    done: int  # steps
    settled: int  # steps since progress was lost in the noise
    reach: float  # how far a coordinate may move in the next step
    stiffness: float  # the curvature seen on the way, in units of the metric
    gains: tuple[float, ...]  # what each step promised, per point
    noises: tuple[float, ...]  # what the noise of each gradient alone would have promised
    loss: float  # the objective at the last accepted point
    loss_error: float  # its standard error
    accepted: Tensor  # (p,): the last accepted point
    gradient: Tensor  # (p,): there
    velocity: Tensor  # (p,): from there to the next point
    metric: Tensor  # (p, p)
    points: Tensor  # (k, p): where the settled steps began, since the last whole step
    gradients: Tensor  # (k, p): what they saw

    @classmethod
    def at(cls, point: Tensor, settings: NewtonSettings) -> NewtonState:
        """Before the first step."""
        zero, none = torch.zeros_like(point), point.new_zeros(0, len(point))
        metric = torch.diag(torch.ones_like(point))
        return cls(0, 0, settings.reach, 1.0, (), (), math.inf, 0.0, point, zero, zero, metric, none, none)

    @property
    def point(self) -> Tensor:
        """Where to evaluate next."""
        return self.accepted + self.velocity

    def saved(self) -> dict[str, Any]:
        """The state as tensors and numbers, for a checkpoint."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def step(state: NewtonState, evaluation: Evaluation, settings: NewtonSettings) -> NewtonState:
    """The state after an evaluation: its point is accepted and left by a new step, or the step to it is halved."""
    metric = state.metric
    if evaluation.information is not None:
        # A coordinate whose whole promise is below the tolerance is not worth moving: the lengthscale of an input
        # that does not matter would go to infinity.
        floor = settings.tolerance * torch.eye(len(state.accepted)).double()
        metric = positive(evaluation.information) + floor
    state = replace(state, done=state.done + 1, metric=metric)
    state = replace(state, stiffness=_stiffness(state, evaluation, settings))
    if rose(state, evaluation, settings):
        return stepped_back(state)
    return _accepted(state, evaluation, settings)


def stepped_back(state: NewtonState) -> NewtonState:
    """Half of the way to the last accepted point, and smaller steps for a while."""
    return replace(state, reach=0.5 * state.reach, velocity=0.5 * state.velocity)


def moved(state: NewtonState, point: Tensor) -> NewtonState:
    """At another point, whose objective is not known, with full steps again."""
    state = replace(state, accepted=point, velocity=torch.zeros_like(point))
    return _without_points(replace(state, loss=math.inf, loss_error=0.0, settled=0))


def refresh_due(state: NewtonState, settings: NewtonSettings) -> bool:
    """Whether the next evaluation needs a new metric: among settled steps, where a whole step has led."""
    if state.settled >= settings.least_settled:
        return not len(state.points)
    return state.done % settings.refresh == 0


def rose(state: NewtonState, evaluation: Evaluation, settings: NewtonSettings) -> bool:
    """Whether the objective rose since the last accepted point by more than its noise and the tolerance.

    Its values tell, or the slopes at both ends of the step, which have less noise where a run is cut short.
    """
    # Among small steps, one value that is low by chance, with an unknown error, would keep all others away. So would it
    # where steps back have made them small: so short a way explains no rise.
    whole = state.settled == 0 and state.reach >= settings.least_reach
    judged = whole or not math.isnan(evaluation.objective_error)
    noise = math.hypot(state.loss_error, known_error(evaluation))
    if judged and evaluation.objective - state.loss > settings.sigmas * noise + settings.tolerance:
        return True
    way = evaluation.point - state.accepted
    rise = 0.5 * float((state.gradient + evaluation.gradient) @ way)
    return rise > settings.sigmas * _slope_noise(state, evaluation, settings, way) + settings.tolerance


def known_error(evaluation: Evaluation) -> float:
    """The standard error of the objective per point; 0 where it is unknown.

    With 0, steps are taken back too often rather than too rarely.
    """
    error = evaluation.objective_error
    return 0.0 if math.isnan(error) else error


def noise_of(state: NewtonState, settings: NewtonSettings) -> float:
    """What the noise of one gradient alone promises, in the mean of the last steps."""
    recent = state.noises[-settings.recent :]
    return sum(recent) / len(recent) if recent else 0.0


def promise(state: NewtonState, settings: NewtonSettings) -> float:
    """What the mean of the last settled gradients promises beyond its noise.

    Before there are any, the last gradient takes its place.
    """
    noise = noise_of(state, settings)
    if not len(state.points):
        return max(0.0, state.gains[-1] - noise)
    count, _, mean = _averaged(state, settings)
    return max(0.0, _promised(state, mean, settings) - noise / count)


def finished(state: NewtonState, settings: NewtonSettings) -> bool:
    """Whether neither a further step nor the noise left is worth more than the tolerance allows."""
    if state.settled < settings.least_settled or len(state.points) < settings.least_settled:
        return False
    left = noise_of(state, settings) / state.settled / settings.noise_share
    return left <= settings.tolerance and promise(state, settings) <= settings.tolerance


def too_noisy(state: NewtonState, settings: NewtonSettings, steps: int) -> bool:
    """Whether averaging the noise out takes more settled steps than there are steps, or than patience allows."""
    if not (settings.tolerance and state.settled):
        return False
    needed = noise_of(state, settings) / (settings.noise_share * settings.tolerance)
    return needed > max(steps, settings.patience)


def words(state: NewtonState, settings: NewtonSettings) -> str:
    if not state.gains:
        return "no step was good"
    count = max(1, state.settled)
    return (
        f"a further Newton step promises {promise(state, settings):.0e} per point, and the noise that is left, "
        f"averaged over {count} steps, costs about {noise_of(state, settings) / count:.0e}"
    )


def restored(saved: Mapping[str, Any], empty: NewtonState, settings: NewtonSettings, most: int) -> NewtonState:
    """The state that a checkpoint holds.

    `empty` is the state of a new training, `most` the largest number of steps.
    """
    saved = {"stiffness": 1.0, "gradient": empty.gradient, **saved}  # an older version saved neither
    numbers: dict[str, Any] = {
        "done": int(saved["done"]),
        "settled": int(saved["settled"]),
        "reach": float(saved["reach"]),
        "stiffness": float(saved["stiffness"]),
        "gains": tuple(map(float, saved["gains"])),
        "noises": tuple(map(float, saved["noises"])),
        "loss": float(saved["loss"]),
        "loss_error": float(saved["loss_error"]),
    }
    p, count = len(empty.accepted), len(saved["points"])
    shapes = {"accepted": (p,), "gradient": (p,), "velocity": (p,), "metric": (p, p)}
    shapes |= {"points": (count, p), "gradients": (count, p)}
    for name, shape in shapes.items():
        tensor = saved[name]
        if (tensor.shape, tensor.dtype) != (shape, torch.float64) or not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} of shape {tuple(tensor.shape)}, or not finite")
    state = NewtonState(**numbers, **{name: saved[name] for name in shapes})
    if any(map(math.isnan, (*state.gains, *state.noises, state.loss, state.loss_error))):
        raise ValueError("gains, noises or the loss hold NaN")
    sizes = 0.0 < state.reach <= settings.reach and 1.0 <= state.stiffness <= settings.stiffest
    if not (0 <= state.done <= most and state.settled >= 0 and sizes):
        raise ValueError(f"step {state.done} of {most}, reach {state.reach}, stiffness {state.stiffness}")
    return state


def _accepted(state: NewtonState, evaluation: Evaluation, settings: NewtonSettings) -> NewtonState:
    gradient, noises = evaluation.gradient, state.noises
    if evaluation.contrast is not None:
        noises = (*noises, _promised(state, evaluation.contrast, settings))
    state = replace(
        state,
        accepted=evaluation.point,
        gradient=gradient,
        loss=evaluation.objective,
        loss_error=known_error(evaluation),
        gains=(*state.gains, _promised(state, gradient, settings)),
        noises=noises,
    )
    least = max(settings.clearly * noise_of(state, settings), settings.tolerance)
    clear = [gain > least for gain in state.gains[-2:]]
    if not clear[-1]:
        state = replace(state, settled=state.settled + 1)
    elif all(clear):  # one alone may be an outlier of the noise
        state = replace(state, settled=max(0, state.settled - 1))
    full = _newton_step(state, gradient, settings)
    if state.settled:
        state = _settled(state, full, settings)
    else:
        state = _without_points(replace(state, velocity=full + settings.momentum * state.velocity))
    return replace(state, reach=min(settings.reach, settings.regrowth * state.reach))


def _settled(state: NewtonState, full: Tensor, settings: NewtonSettings) -> NewtonState:
    """A part of the full step, or a whole one by the mean of the last gradients where that is clear progress."""
    points = torch.cat([state.points, state.accepted[None]])
    gradients = torch.cat([state.gradients, state.gradient[None]])
    state = replace(state, points=points, gradients=gradients)
    count, point, mean = _averaged(state, settings)
    least = max(settings.clearly * noise_of(state, settings) / count, settings.tolerance)
    if count < settings.least_settled or _promised(state, mean, settings) <= least:
        return replace(state, velocity=full / state.settled)
    velocity = point + _newton_step(state, mean, settings) - state.accepted
    return _without_points(replace(state, velocity=velocity, settled=count))  # as many have been averaged


def _averaged(state: NewtonState, settings: NewtonSettings) -> tuple[int, Tensor, Tensor]:
    """The last half of the settled steps, but at least three if there are: how many, their mean point and mean
    gradient.
    """
    count = min(len(state.points), max(settings.least_settled, state.settled // 2))
    return count, state.points[-count:].mean(0), state.gradients[-count:].mean(0)


def _without_points(state: NewtonState) -> NewtonState:
    none = state.points[:0]
    return replace(state, points=none, gradients=none)


def _stiffness(state: NewtonState, evaluation: Evaluation, settings: NewtonSettings) -> float:
    """How much steeper the slope has become since the last accepted point than the information matrix says.

    With little noise in the data that matrix may be half of the Hessian. Full steps would then overshoot for ever.
    """
    way = evaluation.point - state.accepted
    bend = float((evaluation.gradient - state.gradient) @ way)
    expected = float(way @ state.metric @ way)
    clear = bend > 2.0 * settings.sigmas * _slope_noise(state, evaluation, settings, way)
    if not (clear and expected > settings.tolerance):
        return state.stiffness
    return min(max(1.0, math.sqrt(state.stiffness * bend / expected)), settings.stiffest)


def _slope_noise(state: NewtonState, evaluation: Evaluation, settings: NewtonSettings, way: Tensor) -> float:
    """A bound of the standard deviation of (g + g')^T s / 2 along a step s: `|g|_M |s|_M`.

    Here `|g|_M^2`, in the inverse metric, is twice what the noise promises.
    """
    own = 0.0 if evaluation.contrast is None else _promised(state, evaluation.contrast, settings)
    return math.sqrt(max(noise_of(state, settings), own) * float(way @ state.metric @ way))


def _promised(state: NewtonState, gradient: Tensor, settings: NewtonSettings) -> float:
    """What a Newton step within the whole box promises, however short steps are just now."""
    return promised(state.metric, gradient, settings.reach, settings.pivots)


def _newton_step(state: NewtonState, gradient: Tensor, settings: NewtonSettings) -> Tensor:
    return box_newton_step(state.stiffness * state.metric, gradient, state.reach, settings.pivots)
