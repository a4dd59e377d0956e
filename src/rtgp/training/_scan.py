"""Other places to begin a first fit at: shorter lengthscales, less noise.

A likelihood has optima at which the short waves of a function are noise. A descent from long lengthscales may end in
one. A few evaluations elsewhere tell: a place that is better than that end before it is fitted lies in another basin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from rtgp.training._lbfgs import Array, Surface
from rtgp.training._problem import Problem


@dataclass(frozen=True)
class ScanSettings:
    """Where to look, as factors on the start. Chosen, not fitted to any data.

    Attributes
    ----------
    together : tuple[float, ...]
        On all lengthscales at once.
    alone : tuple[float, ...]
        On the lengthscale of one input, with the others where the fit has ended.
    noises : tuple[float, ...]
        On the noise. Of a single input only the last is tried.
    most : int
        Evaluations of one look. Of many inputs only so many are tried alone.
    looks : int
        How often. After a fit from a better place there may be a still better one.
    clear : float
        Gain per point of a fit from there below which the first end stays.
    """

    together: tuple[float, ...] = (0.3, 0.1, 0.03, 0.01)
    alone: tuple[float, ...] = (0.1, 0.02)
    noises: tuple[float, ...] = (1.0, 0.1)
    most: int = 40
    looks: int = 3
    clear: float = 0.01


DEFAULT = ScanSettings()


@dataclass(frozen=True)
class Fitted:
    """Where a first fit has ended."""

    end: Array
    value: float  # the objective per point
    place: str = ""  # where else it began, in words; "": at the start


@dataclass(frozen=True)
class _Place:
    words: str
    point: Array
    stretched: bool = False  # distances there are not a multiple of those at the start: other points are near


def fitted_from_the_best(
    surface: Surface, origin: Array, fit: Callable[[Array], tuple[Array, float]], settings: ScanSettings = DEFAULT
) -> Fitted:
    """`fit` from the origin, and from a better place as long as there is one that leads clearly lower."""
    best = Fitted(*fit(origin))
    for _ in range(settings.looks):
        place = _better_place(surface, origin, best, settings)
        if place is None:
            break
        surface.forget()
        other = Fitted(*fit(place.point), place.words)
        if other.value > best.value - settings.clear:
            break
        best = other
    return best


def _better_place(surface: Surface, origin: Array, best: Fitted, settings: ScanSettings) -> _Place | None:
    found, least = None, best.value
    for place in islice(_places(surface.problem, origin, best.end, settings), settings.most):
        if place.stretched:
            surface.problem.mll.release()  # which holds the neighbours of each point
        value, _ = surface(place.point)
        if value < least:
            found, least = place, value
    return found


def _places(problem: Problem, origin: Array, end: Array, settings: ScanSettings) -> Iterator[_Place]:
    lengthscales, noises = problem.logarithms_of("lengthscale"), problem.logarithms_of("noise")
    if not lengthscales:
        return
    for noise in settings.noises if noises else (1.0,):
        for factor in settings.together:
            point = _moved(_moved(origin, lengthscales, factor), noises, noise)
            yield _Place(f"all lengthscales times {factor:g}, noise times {noise:g}", point)
    if len(lengthscales) == 1:
        return
    noise = settings.noises[-1]
    for number, entry in enumerate(lengthscales, start=1):
        for factor in settings.alone:
            point = end.copy()
            point[[entry, *noises]] = origin[[entry, *noises]]
            point = _moved(_moved(point, [entry], factor), noises, noise)
            yield _Place(f"lengthscale {number} times {factor:g}, noise times {noise:g}", point, stretched=True)


def _moved(point: Array, entries: list[int], factor: float) -> Array:
    moved = point.copy()
    moved[entries] += math.log(factor)
    return moved
