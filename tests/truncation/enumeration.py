"""Exact expectations over the random numbers of a weighting, by enumeration through the real drawing code.

A draw is a step function of its uniform number U: it changes only where U crosses a survival probability. So one U
inside each interval between breakpoints, weighted by the interval's length, gives expectations without sampling error.
Breakpoints that the draw does not use do no harm; missing ones would show as a wrong expectation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product

import numpy as np

from rtgp.truncation import Weighting


def cells(breakpoints: Sequence[float]) -> list[tuple[float, float]]:
    """(a number inside, length) of each interval into which the breakpoints split (0, 1]."""
    edges = sorted({0.0, 1.0, *(min(float(b), 1.0) for b in breakpoints)})
    return [((a + b) / 2, b - a) for a, b in pairwise(edges)]


def expectation(value: Callable[[list[float]], np.ndarray], breakpoints: Sequence[float], draws: int) -> np.ndarray:
    """E[value(U_1, ..., U_draws)] over independent uniform numbers."""
    return sum(
        math.prod(length for _, length in choice) * value([u for u, _ in choice])
        for choice in product(cells(breakpoints), repeat=draws)
    )


def weights_along(weighting: Weighting, proxies: Sequence[float]) -> np.ndarray:
    """The weights of every increment of a run with these proxies before each, zero once it has ended. (H, draws)"""
    rows = np.zeros((len(proxies), weighting.draws))
    for j, proxy in enumerate(proxies):
        weights = weighting.next(proxy)
        if weights is None:
            break
        rows[j] = weights
    return rows


def with_proxies(increments: Sequence[float], proxies: Sequence[float]) -> Iterator[tuple[float, float]]:
    """A sequential series; proxies[j] is the proxy before increment j + 1, so the first one is not told."""
    yield from zip(increments, [*proxies[1:], 0.0], strict=True)


def pair_survival(longest: np.ndarray) -> np.ndarray:
    """S with 1 - (1 - S)^2 = M, as the textbook has it."""
    return 1 - np.sqrt(1 - np.minimum(longest, 1.0))
