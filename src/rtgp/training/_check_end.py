"""Does training end where it should? Independent draws check it, and steps along a ridge follow what they show.

The information matrix may be many times the Hessian along a ridge, and a Newton step then promises a fraction of what
there is to gain. Where independent draws clearly promise something, the ridge is followed with these draws held fixed,
and its end is checked with new ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp.distributed._errors import DisagreementError, RankError
from rtgp.errors import RTGPError
from rtgp.training._evaluation import Evaluation
from rtgp.training._newton import NewtonSettings
from rtgp.training._problem import Problem
from rtgp.training._quadratic import box_newton_step, damped_bfgs, promised


@dataclass(frozen=True)
class Check:
    """What a check of the end has found.

    Attributes
    ----------
    confirmed : bool
        Whether independent draws promise no more than the tolerance.
    evaluations : tuple of Evaluation
        The last ones.
    """

    confirmed: bool
    evaluations: tuple[Evaluation, ...]


def check_end(problem: Problem, metric: Tensor, noisy: bool, settings: NewtonSettings) -> Check:
    """Check the point where the problem is; where more is promised, go on along the ridge, and check again.

    A step along the ridge follows draws that are held fixed, and where the objective is flat it follows their noise. So
    its end counts only where new draws find a lower objective there.
    """
    worth, reach = settings.ridge_share * settings.tolerance, settings.reach
    # Fixed draws have no noise between them that could move what does not matter: a smaller floor is enough.
    metric = metric - (settings.tolerance - worth) * torch.eye(len(metric)).double()
    here, found = problem.point, _checked(problem, metric, noisy, settings)
    for left in reversed(range(settings.rounds)):
        if found is None:
            return Check(True, ())  # as good as can be known
        noise = _noise(found.evaluations, metric, settings) / len(found.evaluations)
        promise = promised(metric, _mean(found.evaluations), settings.reach, settings.pivots)
        if promise <= max(settings.clearly * noise, worth if left else settings.tolerance):
            return Check(True, found.evaluations)
        gain, seen = _follow(problem, here, found, metric, reach, settings)
        if gain <= settings.slow_share * settings.tolerance:  # not worth the draws that would confirm it
            problem.move_to(here)
            further_promise = promised(seen, _mean(found.evaluations), settings.reach, settings.pivots)
            return Check(further_promise <= settings.tolerance, found.evaluations)
        there, further = problem.point, _checked(problem, metric, noisy, settings)
        if further is not None and _lower(further, found, metric, settings):
            here, found, metric = there, further, seen  # what the ridge has shown of the curvature holds here too
            continue
        problem.move_to(here)  # draws that promised something else than there is
        reach, metric = reach * settings.ridge_caution, seen
        found = _checked(problem, metric, noisy, settings) or found
    return Check(False, () if found is None else found.evaluations)


@dataclass(frozen=True)
class _Draws:
    """Estimates at one point by the draws of these seeds."""

    seeds: tuple[int, ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def objective(self) -> tuple[float, float]:
        """The mean and its standard error, by the errors that the estimates state. NaN where one states none."""
        count = len(self.evaluations)
        mean = sum(one.objective for one in self.evaluations) / count
        return mean, math.hypot(*(one.objective_error for one in self.evaluations)) / count


def _checked(problem: Problem, metric: Tensor, noisy: bool, settings: NewtonSettings) -> _Draws | None:
    """Evaluate new draws at the problem's point, as many as make their noise small.

    None where they cannot be computed.
    """
    seeds = tuple(problem.draw_seed() for _ in range(settings.checked if noisy else 1))
    return _enough(problem, problem.point, seeds, metric, settings)


def _enough(
    problem: Problem,
    point: Tensor,
    seeds: tuple[int, ...],
    metric: Tensor,
    settings: NewtonSettings,
    hold: bool = False,
    complete: bool = False,
) -> _Draws | None:
    """Estimates by as many of the seeds as the noise of the first asks for; None where one cannot be computed."""
    first = _evaluated(problem, point, seeds[:1], hold, complete)
    if not first:
        return None
    seeds = seeds[: _draws(_noise(first, metric, settings), settings)]
    others = _evaluated(problem, point, seeds[1:], hold, complete)
    return None if others is None else _Draws(seeds, (*first, *others))


def _lower(there: _Draws, here: _Draws, metric: Tensor, settings: NewtonSettings) -> bool:
    """Whether the objective is lower there, by more than the standard error of the difference.

    The difference is known from the values and from the slopes at both ends of the step. Slopes have less noise. Each
    counts with the weight of its precision.
    """
    way = there.evaluations[0].point - here.evaluations[0].point
    ends = (there, here)
    slope = -0.5 * float(sum(_mean(one.evaluations) @ way for one in ends))
    noise = 0.5 * sum(_noise(one.evaluations, metric, settings) / len(one.evaluations) for one in ends)
    known = [(slope, math.sqrt(noise * float(way @ metric @ way)))]
    (new, new_error), (old, old_error) = there.objective, here.objective
    if not math.isnan(new_error + old_error):
        known.append((old - new, math.hypot(new_error, old_error)))
    exact = [difference for difference, error in known if error == 0.0]
    if exact:
        return exact[-1] > 0.0
    weights = [error**-2 for _, error in known]
    mean = sum(weight * difference for weight, (difference, _) in zip(weights, known, strict=True)) / sum(weights)
    return mean > 1.0 / math.sqrt(sum(weights))


def _noise(found: Sequence[Evaluation], metric: Tensor, settings: NewtonSettings) -> float:
    """What the noise of one gradient promises, though nothing is there to gain."""
    contrasts = [
        promised(metric, one.contrast, settings.reach, settings.pivots) for one in found if one.contrast is not None
    ]
    return sum(contrasts) / len(contrasts) if contrasts else 0.0


def _draws(noise: float, settings: NewtonSettings) -> int:
    """The number of draws whose mean has a small noise beside the tolerance, at most as many as a check has."""
    small = settings.slow_share * settings.tolerance
    return min(settings.checked, max(1, math.ceil(noise / small))) if small > 0.0 else settings.checked


def _follow(
    problem: Problem, point: Tensor, begin: _Draws, metric: Tensor, reach: float, settings: NewtonSettings
) -> tuple[float, Tensor]:
    """Quasi-Newton steps (damped BFGS, from the metric) on the objective of fixed draws, along a ridge.

    Fixed draws have no noise between their gradients. Only slopes decide, for values have noise. The steps end where
    one is not worth taking, or where the last few together have gained next to nothing. Returned are the gain by these
    draws, and the metric with the curvature seen.

    A step that ends at its reach and gains about what the model said is followed by a longer one: along a ridge an
    input that does not matter goes far.

    The first step shows whether there is a ridge: by the curvature along it, what is left must be worth the steps.

    Nothing is truncated. The same draws would otherwise end their series elsewhere after a small step, and the
    objective would jump. (Where a run to working precision fails, truncation stays.) Fixed draws keep their
    preconditioner, and far from it they become noisy. A step to where their noise has grown too much is halved.
    """
    worth, small = settings.ridge_share * settings.tolerance, settings.slow_share * settings.tolerance
    whole = _enough(problem, point, begin.seeds, metric, settings, hold=True, complete=True)
    complete, draws = whole is not None, whole or begin
    seeds, gradient = draws.seeds, _mean(draws.evaluations)
    yardstick = metric  # noise is compared in one metric, not in what steps make of it
    loudest = max(settings.ridge_noise * _noise(draws.evaluations, metric, settings), small)
    gains: list[float] = []
    for _ in range(settings.ridge_steps):
        recent = gains[-settings.slow_steps :]
        if len(recent) == settings.slow_steps and sum(recent) < small:
            break
        step = box_newton_step(metric, gradient, reach, settings.pivots)
        expected = -float(gradient @ step) - 0.5 * float(step @ metric @ step)
        if -0.5 * float(gradient @ step) <= worth or reach < settings.least_reach:
            break
        found = _evaluated(problem, point + step, seeds[:1], hold=True, complete=complete)
        if not found or _noise(found, yardstick, settings) > max(loudest, worth):
            reach *= 0.5
            continue
        others = _evaluated(problem, point + step, seeds[1:], hold=True, complete=complete)
        if others is None:
            reach *= 0.5
            continue
        there = _mean([*found, *others])
        metric, first = damped_bfgs(metric, step, there - gradient, settings.damping), not gains
        gain = -0.5 * float((gradient + there) @ step)  # by the slopes at both ends
        agreement = gain / expected
        if agreement < settings.ridge_poor:
            reach *= 0.5
        elif math.isclose(float(step.abs().max()), reach) and abs(agreement - 1.0) < settings.ridge_good:
            reach = min(2.0 * reach, settings.ridge_reach)
        if gain >= 0.0:
            gains.append(gain)
            point, gradient = point + step, there
        if first:
            left = promised(metric, gradient, reach, settings.pivots)
            if sum(gains) + left <= settings.probe_share * settings.tolerance:
                break
    problem.move_to(point)
    return sum(gains), metric


def _mean(found: Sequence[Evaluation]) -> Tensor:
    return torch.stack([one.gradient for one in found]).mean(0)


def _evaluated(
    problem: Problem, point: Tensor, seeds: Sequence[int], hold: bool = False, complete: bool = False
) -> list[Evaluation] | None:
    """Estimates at a point, one for each seed; None where it cannot be computed.

    With `hold`, draws that are used again keep their preconditioner too. With `complete`, nothing is truncated.
    """
    try:
        problem.move_to(point)
        return [problem.evaluate_with(seed, contrast=True, hold=hold, complete=complete) for seed in seeds]
    except (RankError, DisagreementError):
        raise
    except RTGPError:
        problem.move_to(point)
        return None
