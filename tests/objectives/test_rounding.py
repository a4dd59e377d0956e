"""The bound of `rounding` on a CPU: wide enough for another order of sums, and no wider than that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import rtgp
from objectives.rounding import Evaluator, Scatter, anew, make_data
from rtgp._solvers import NoiseUnits

CALLS = 4
refreshes = pytest.mark.parametrize("refresh", [None, 1], ids=["kept", "renewed"])


def summed_otherwise(system: NoiseUnits, v: Tensor) -> Tensor:
    """A v, the sums in float64: rounded once, at the end."""
    scale = system._working_scale
    return (scale.double() * system.operator.wide_matmul(scale * v).double() + v.double()).to(v.dtype)


@refreshes
def test_rounding_is_told_from_an_error(refresh: int | None) -> None:
    """Four calls, as the noise moves. Other sums pass: false alarm 1e-5, and 5e-4 that rounding moves the truncations
    of three. Power: a gradient that is off by 2%, a value that is off by 1e-4, and the noise of the call before."""
    x, y = make_data(700, 5)
    method = rtgp.RRCG(refresh=refresh)
    kept, others = Evaluator(x, y, method), []
    for k in range(CALLS):
        noise, state = 0.01 * (1 + k), kept.state()
        scatter = Scatter.of(x, y, method, state, noise, k)
        assert scatter is not None
        found = kept.call(noise, k)
        assert found.deviation(scatter.centre) == (0.0, 0.0)  # on a CPU the state is all there is
        assert scatter.holds(found) is True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NoiseUnits, "matmul", summed_otherwise)
            others.append(scatter.holds(anew(x, y, method, state, noise, k)))
        assert scatter.holds(replace(found, gradient=1.02 * found.gradient)) is False
        assert scatter.holds(replace(found, value=found.value + 1e-4)) is False
        if k > 0:
            assert scatter.holds(anew(x, y, method, state, noise - 0.01, k)) is not True
    assert False not in others
    assert others.count(True) >= 2


def test_a_run_that_ends_elsewhere_is_not_compared() -> None:
    """Its draw is another one, which is no error."""
    x, y = make_data(300, 5)
    scatter = Scatter.of(x, y, rtgp.RRCG(), Evaluator(x, y, rtgp.RRCG()).state(), 0.01, 0)
    assert scatter is not None
    other = replace(scatter.centre, ends=((1, 2, 2), ()), gradient=torch.zeros_like(scatter.centre.gradient))
    assert scatter.holds(other) is None
