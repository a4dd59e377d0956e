"""Where a training begins: fits that cost little make candidates, and the objective on all points decides."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from rtgp.training import _neighbour_start as neighbour_start
from rtgp.training._neighbour_start import NeighbourStart, fit_by_neighbours
from rtgp.training._problem import Problem
from rtgp.training._start import DEFAULT, GIVEN, FirstFit, StartSettings, fit_on_subset


@dataclass(frozen=True)
class Candidate:
    """Hyperparameters from which training may begin. Objectives are per point."""

    words: str
    values: list[Tensor]
    fitted: float | None = None  # the objective by the likelihood that was fitted, where one was
    gained: float = 0.0  # by that, from the given hyperparameters
    estimated: bool = False
    objective: float | None = None  # an unbiased estimate on all points; None where it cannot be computed


def start_from_subset(problem: Problem, size: int, seed: int, settings: StartSettings = DEFAULT) -> str:
    """Set the parameters to those fitted on `size` random points, unless they are no better on all points.

    What was done is returned, in words.
    """
    return begin(problem, size, False, seed, settings)


def begin(
    problem: Problem,
    size: int,
    by_neighbours: bool,
    seed: int,
    settings: StartSettings = DEFAULT,
    neighbours: NeighbourStart = neighbour_start.DEFAULT,
) -> str:
    """Set the parameters to the best of several candidates.

    These are the given ones, those fitted by the likelihood of neighbours, and those fitted on `size` random points.
    What was done is returned, in words.

    Where the likelihood of neighbours agrees with the unbiased estimate, the subset has nothing to add, and neither
    have given hyperparameters that are far worse by it. All estimates are by the same draws.
    """
    given = Candidate(GIVEN, problem.snapshot())
    candidates, failures = [given], []

    def tried(what: str, fit: Callable[[], FirstFit | str]) -> Candidate | None:
        problem.restore(given.values)
        began, found = time.perf_counter(), fit()
        if isinstance(found, str):
            failures.append(f"a fit {what} failed: {found}")
            return None
        words = _fitted(what, found, began)
        gained = 0.0 if found.before is None else found.before - found.objective
        return Candidate(words, problem.snapshot(), found.objective, gained)

    believed = False
    if by_neighbours and neighbour_start.pays(problem, size, neighbours):
        by = f"by {neighbours.count} neighbours of each point"
        found = tried(by, lambda: fit_by_neighbours(problem, seed, neighbours))
        if found is not None:
            found = _estimated(problem, found, seed)
            candidates.append(found)
            believed = _believed(found, neighbours)
            if believed and found.gained > neighbours.clear:
                problem.restore(found.values)
                return f"{found.words}; by the likelihood of neighbours {GIVEN} are {found.gained:.3g} per point worse"
    if not believed:
        found = tried(_on_subset(problem, size, seed), lambda: fit_on_subset(problem, size, seed, settings))
        if found is not None:
            candidates.append(found)
            if size == problem.rows and len(candidates) == 2:  # they were compared where it matters
                problem.restore(found.values)
                return found.words
    if len(candidates) == 1:
        problem.restore(given.values)
        return f"{GIVEN} ({'; '.join(failures)})"
    compared = [_estimated(problem, candidate, seed) for candidate in candidates]
    # The last of equals: where nothing can be computed, a fit is the better guess than none.
    best = min(reversed(compared), key=lambda one: math.inf if one.objective is None else one.objective)
    problem.restore(best.values)
    return "; ".join([best.words, *(_beside(one, best) for one in compared if one is not best), *failures])


def look_elsewhere(problem: Problem, size: int, seed: int, settings: StartSettings = DEFAULT) -> str | None:
    """Begin where a fit on `size` random points ends, if that has found a better basin than that of the given
    hyperparameters.

    What was done is returned, in words. None means to stay at the given ones.
    """
    given, began = problem.snapshot(), time.perf_counter()
    found = fit_on_subset(problem, size, seed, settings)
    if isinstance(found, str) or not found.place:
        problem.restore(given)
        return None
    return _fitted(_on_subset(problem, size, seed), found, began)


def _on_subset(problem: Problem, size: int, seed: int) -> str:
    return f"by Cholesky on {size} of {problem.rows} points, drawn with seed {seed}"


def _fitted(what: str, found: FirstFit, began: float) -> str:
    place = f" from {found.place}" if found.place else ""
    spent = f"{found.evaluations} evaluations, {time.perf_counter() - began:.1f} s"
    return f"hyperparameters fitted {what}{place} ({spent})"


def _estimated(problem: Problem, candidate: Candidate, seed: int) -> Candidate:
    if candidate.estimated:
        return candidate
    return replace(candidate, estimated=True, objective=problem.objective_at(candidate.values, seed))


def _believed(candidate: Candidate, settings: NeighbourStart) -> bool:
    if candidate.objective is None or candidate.fitted is None:
        return False
    return abs(candidate.objective - candidate.fitted) <= settings.agrees


def _beside(other: Candidate, best: Candidate) -> str:
    if other.objective is None or best.objective is None:
        return f"the loss on all points cannot be computed at {other.words}"
    return f"on all points the loss is {other.objective - best.objective:.3g} per point higher at {other.words}"
