"""Training from several starts: a likelihood may have several optima, and a start decides which is found."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rtgp.training._problem import Problem
from rtgp.training._result import FitResult
from rtgp.training._start import StartSettings, fit_on_subset, part_of


@dataclass(frozen=True)
class Restarts:
    """Settings of a training from several starts.

    Attributes
    ----------
    least : int
        Number of points of a subset, or all there are: fewer say little about the optima of all.
    spread : float
        How far the logarithm of a parameter may be moved from the given start.
    trained : int
        How many ends of the fits on a subset are trained on all data, at the most.
    apart : float
        How far one logarithm must be from its like for two ends to be different.
    """

    least: int = 200
    spread: float = 2.0
    trained: int = 3
    apart: float = 0.2


def train_from_several(
    problem: Problem,
    restarts: int,
    seed: int,
    checkpoint: str | os.PathLike[str] | None,
    train: Callable[[str | None], FitResult],
    settings: Restarts | None = None,
    start: StartSettings | None = None,
) -> FitResult:
    """Train from the given start and from `restarts` others, and leave the model at the best end.

    All are fitted on a subset first. The best different ends are trained on all data by `train`, which begins where the
    model is.
    """
    settings, start = settings or Restarts(), start or StartSettings()
    size = min(problem.rows, max(settings.least, part_of(problem.rows, start)))
    generator = torch.Generator().manual_seed(seed)
    given = problem.snapshot()
    starts = [given, *(problem.perturbed(generator, settings.spread) for _ in range(restarts))]
    found: list[tuple[float, list[Tensor]]] = []
    for values in starts:
        problem.restore(values)
        end = fit_on_subset(problem, size, seed, start)
        if not isinstance(end, str):
            found.append((end.objective, problem.snapshot()))
    chosen: list[list[Tensor]] = []
    for _, values in sorted(found, key=lambda pair: pair[0]):
        if len(chosen) < settings.trained and all(_distance(values, other) > settings.apart for other in chosen):
            chosen.append(values)
    results: list[tuple[FitResult, list[Tensor]]] = []
    for number, values in enumerate(chosen or [given], start=1):
        problem.restore(values)
        result = train(None if checkpoint is None else str(Path(checkpoint) / f"start-{number}"))
        problem.pull()
        results.append((result, problem.snapshot()))
    results.sort(key=lambda pair: pair[0].loss)
    best, at = results[0]
    problem.restore(at)
    ends = tuple(result.loss for result, _ in results)
    words = f"{len(starts)} starts, fitted by Cholesky on {size} points, of which {len(ends)} were trained on all"
    apart = f"; the trainings ended {ends[-1] - ends[0]:.1e} per point apart" if len(ends) > 1 else ""
    return replace(best, start=f"the best of {words}", message=f"{best.message}{apart}", ends=ends)


def _distance(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))
