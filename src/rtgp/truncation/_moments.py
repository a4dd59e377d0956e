"""What the `from_moments` constructors share: a bracketing root finder and the final check of what was reached."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from rtgp.errors import SettingError
from rtgp.truncation._checks import check_number, reject

_TOLERANCE = 0.05  # a family that misses a wanted moment by more than this fraction refuses


class HasMoments(Protocol):
    @property
    def mean(self) -> float: ...
    @property
    def std(self) -> float: ...


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """A root of `function` between 0 < low <= high, searched in log scale; the better end where there is none.

    Chandrupatla's method (1997): inverse quadratic interpolation where it is safe, halving where it is not. The moments
    of a discrete family can be nearly staircases in its parameters, on which secant methods crawl.
    """
    a, b = math.log(low), math.log(high)
    at_a, at_b = function(low), function(high)
    if (at_a > 0) == (at_b > 0):
        return low if abs(at_a) <= abs(at_b) else high
    fraction = 0.5
    while True:
        x = a + fraction * (b - a)
        at_x = function(math.exp(x))
        # b: the other side of the root from x; c: the point given up.
        if (at_x > 0) == (at_a > 0):
            c, at_c = a, at_a
        else:
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a = x, at_x
        best, at_best = (a, at_a) if abs(at_a) < abs(at_b) else (b, at_b)
        resolution = 4e-16 * max(abs(best), 1.0) / abs(b - a)
        if at_best == 0 or resolution > 0.5:
            return math.exp(best)
        position, level = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        if level**2 < position and (1 - level) ** 2 < 1 - position:
            fraction = at_a / (at_b - at_a) * at_c / (at_b - at_c)
            fraction += (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        else:
            fraction = 0.5
        fraction = min(max(fraction, resolution), 1 - resolution)


def check_wanted(family: str, mean: float, std: float) -> None:
    """Require mean >= 1 and std > 0, as every family but the constant one needs."""
    check_number(family, "std", std)
    check_number(family, "mean", mean)
    if mean < 1:
        reject(family, "mean", "a number of at least 1 (the first truncation)", mean)


def check_reached(member: HasMoments, mean: float, std: float) -> None:
    """Refuse a member whose mean or standard deviation is more than 5% off what was asked for."""
    if abs(member.mean - mean) <= _TOLERANCE * mean and abs(member.std - std) <= _TOLERANCE * std:
        return
    raise SettingError(
        f"No {type(member).__name__} has mean {mean:g} and standard deviation {std:g}. The nearest found, "
        f"{member!r:.100}, has mean {member.mean:g} and standard deviation {member.std:g}. "
        "Ask for values nearer to these, or use another family."
    )
