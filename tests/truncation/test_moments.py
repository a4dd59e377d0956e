"""The root finder of `from_moments`: to the last digits, in few evaluations, and never lost on a staircase."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from rtgp.truncation import Geometric, PowerLaw
from rtgp.truncation._moments import find_root


def counted(function: Callable[[float], float], low: float, high: float) -> tuple[float, int]:
    """The root, and how many times the function was asked."""
    asked = []

    def counting(x: float) -> float:
        assert low * (1 - 1e-12) <= x <= high * (1 + 1e-12)
        asked.append(x)
        return function(x)

    return find_root(counting, low, high), len(asked)


@pytest.mark.parametrize(
    ("function", "low", "high", "root"),
    [
        (lambda x: x**3 - 2.0, 1e-3, 1e3, 2.0 ** (1 / 3)),
        (lambda x: math.exp(-x) - 0.3, 1e-6, 1e2, -math.log(0.3)),
        (lambda x: math.log(x) - 0.7, 1e-3, 1e3, math.exp(0.7)),
        (lambda x: 1.0 / x - 37.0, 1e-12, 50.0, 1.0 / 37.0),
    ],
)
def test_smooth_functions_take_few_evaluations(
    function: Callable[[float], float], low: float, high: float, root: float
) -> None:
    """Halving takes 56."""
    found, evaluations = counted(function, low, high)
    assert found == pytest.approx(root, rel=4e-15)
    assert evaluations <= 15


@pytest.mark.parametrize(
    ("function", "root"),
    [
        (lambda x: math.floor(10.0 * math.log(x)) - 2.5, math.exp(0.3)),  # a jump over zero
        (lambda x: (math.log(x) - 1.0) ** 5, math.e),  # flat at its root
    ],
)
def test_where_interpolation_fails_it_is_hardly_slower_than_halving(
    function: Callable[[float], float], root: float
) -> None:
    found, evaluations = counted(function, 1e-2, 1e2)
    assert found == pytest.approx(root, rel=1e-3)
    assert evaluations <= 70


def test_without_a_root_it_is_the_better_end() -> None:
    assert find_root(lambda x: x + 1.0, 1.0, 3.0) == 1.0
    assert find_root(lambda x: x - 5.0, 1.0, 3.0) == 3.0
    assert find_root(lambda x: 2.0, 1.0, 3.0) == 1.0


def test_families_reach_the_edges_of_their_parameters() -> None:
    """The smallest minimum of a geometric law, and a power law that falls more slowly than 1/J."""
    first = Geometric.from_moments(2.0, math.sqrt(2.0))
    assert (first.p, first.minimum) == (pytest.approx(0.5), 1)
    slow = PowerLaw(0.5, 10, 1000)
    found = PowerLaw.from_moments(slow.mean, slow.std, maximum=1000)
    assert found.exponent == pytest.approx(0.5, abs=1e-6)
    assert (found.minimum, found.maximum) == (10, 1000)
