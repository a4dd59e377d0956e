"""Does training end where it should? Independent draws check it, and steps along a ridge follow what they show.

The information matrix may be many times the Hessian along a ridge, and a Newton step then promises a fraction of what
there is to gain. Where independent draws clearly promise something, the ridge is followed with these draws held fixed,
and its end is checked with new ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp.distributed.errors import DisagreementError, RankError
from rtgp.errors import RTGPError
from rtgp.training.evaluation import Evaluation
from rtgp.training.newton import NewtonSettings
from rtgp.training.problem import Problem
from rtgp.training.quadratic import box_newton_step, damped_bfgs, promised


@dataclass(frozen=True)
class Check:
    """confirmed: whether independent draws promise no more than the tolerance; evaluations: the last ones."""

    confirmed: bool
    evaluations: tuple[Evaluation, ...]


def check_end(problem: Problem, metric: Tensor, noisy: bool, settings: NewtonSettings) -> Check:
    """Check the point where the problem is; where more is promised, go on along the ridge, and check again."""
    worth = settings.ridge_share * settings.tolerance
    # Fixed draws have no noise between them that could move what does not matter: a smaller floor is enough.
    metric = metric - (settings.tolerance - worth) * torch.eye(len(metric)).double()
    last: list[Evaluation] = []
    for left in reversed(range(settings.rounds)):
        here = problem.point
        seeds = [problem.draw_seed() for _ in range(settings.checked if noisy else 1)]
        found = _evaluated(problem, here, seeds[:1])
        if found is None:
            return Check(True, tuple(last))  # as good as can be known
        noise = _noise(found, metric, settings)
        enough = _draws(noise, settings) if noisy else 1
        further = _evaluated(problem, here, seeds[1:enough]) if enough > 1 else []
        if further is None:
            return Check(True, tuple(last))
        last = found = [*found, *further]
        noise = _noise(found, metric, settings)  # of one
        promise = promised(metric, _mean(found), settings.reach, settings.pivots)
        if promise <= max(settings.clearly * noise / len(found), worth if left else settings.tolerance):
            return Check(True, tuple(last))
        enough = min(len(found), _draws(noise, settings))
        _follow(problem, here, _mean(found[:enough]), seeds[:enough], metric, settings)
    return Check(False, tuple(last))


def _noise(found: list[Evaluation], metric: Tensor, settings: NewtonSettings) -> float:
    """What the noise of one gradient promises, by mistake."""
    contrasts = [
        promised(metric, one.contrast, settings.reach, settings.pivots) for one in found if one.contrast is not None
    ]
    return sum(contrasts) / len(contrasts) if contrasts else 0.0


def _draws(noise: float, settings: NewtonSettings) -> int:
    """As many that the noise of their mean is small beside the tolerance; at the most as many as a check has."""
    small = settings.slow_share * settings.tolerance
    return min(settings.checked, max(1, math.ceil(noise / small))) if small > 0.0 else settings.checked


def _follow(
    problem: Problem, point: Tensor, gradient: Tensor, seeds: list[int], metric: Tensor, settings: NewtonSettings
) -> None:
    """Quasi-Newton steps (damped BFGS, from the metric) on the objective of fixed draws, whose gradients have no noise
    between them. Only slopes decide, for values have noise. Ends where a step is not worth taking, or where the last
    few together have gained next to nothing.

    gradient: at the point, by the draws of these seeds.
    """
    worth, reach = settings.ridge_share * settings.tolerance, settings.reach
    gains: list[float] = []
    for _ in range(settings.ridge_steps):
        recent = gains[-settings.slow_steps :]
        if len(recent) == settings.slow_steps and sum(recent) < settings.slow_share * settings.tolerance:
            break
        step = box_newton_step(metric, gradient, reach, settings.pivots)
        if -0.5 * float(gradient @ step) <= worth or reach < settings.least_reach:
            break
        found = _evaluated(problem, point + step, seeds, hold=True)
        if found is None:
            reach *= 0.5
            continue
        there = _mean(found)
        metric = damped_bfgs(metric, step, there - gradient, settings.damping)
        if float((gradient + there) @ step) > 0.0:  # it rose, by the slopes at both ends
            reach *= 0.5
        else:
            gains.append(-0.5 * float((gradient + there) @ step))
            point, gradient = point + step, there
    problem.move_to(point)


def _mean(found: list[Evaluation]) -> Tensor:
    return torch.stack([one.gradient for one in found]).mean(0)


def _evaluated(problem: Problem, point: Tensor, seeds: list[int], hold: bool = False) -> list[Evaluation] | None:
    """Estimates at a point, one for each seed; None where it cannot be computed. hold: draws that are used again keep
    their preconditioner too."""
    try:
        problem.move_to(point)
        return [problem.evaluate_with(seed, contrast=True, hold=hold) for seed in seeds]
    except (RankError, DisagreementError):
        raise
    except RTGPError:
        problem.move_to(point)
        return None
