"""How much of a control variate is taken: least squares over calls, against draws whose slopes are known.

Seeds are fixed. False alarm for a new seed, by 2,000 of them: below 1e-3 for each test.
"""

from __future__ import annotations

import math

import pytest
import torch

from rtgp._objectives.control_coefficients import Coefficients, by_cost

P = 8
GUESS = 0.5


def draw(slopes: list[float], generator: torch.Generator, scale: float = 1.0, noise: float = 0.1):
    y = scale * torch.randn(2, P, generator=generator, dtype=torch.float64)
    x = torch.tensor(slopes, dtype=torch.float64) @ y
    return x + noise * scale * torch.randn(P, generator=generator, dtype=torch.float64), y


def learnt(slopes: list[float], calls: int = 20, scale: float = 1.0, seed: int = 0) -> Coefficients:
    coefficients, generator = Coefficients(), torch.Generator().manual_seed(seed)
    for _ in range(calls):
        x, y = draw(slopes, generator, scale)
        coefficients.learn(x, y, GUESS, float(x.square().sum()))
    return coefficients


def test_begins_with_the_guess() -> None:
    assert Coefficients().values(0.3).tolist() == [0.3, 0.3]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_finds_the_slope_of_each(scale: float) -> None:
    assert learnt([0.02, 0.7], scale=scale).values(GUESS).tolist() == pytest.approx([0.02, 0.7], abs=0.1)


def test_the_guess_counts_in_the_first_call_alone() -> None:
    """What one call teaches scatters by 0.045, so the mean of 100 by 0.0045: the bar is at 4 of them."""
    assert learnt([0.9, 0.9], 1).values(GUESS).tolist() == pytest.approx([0.86, 0.86], abs=0.08)
    first = torch.stack([learnt([0.9, 0.9], 1, seed=seed).values(GUESS) for seed in range(100)]).mean(0)
    assert first.tolist() == pytest.approx([0.86, 0.86], abs=0.02)
    assert learnt([0.9, 0.9], 20).values(GUESS).tolist() == pytest.approx([0.9, 0.9], abs=0.05)


def test_stays_between_nothing_and_all() -> None:
    assert learnt([-3.0, 40.0], 5).values(GUESS).tolist() == [0.0, 1.0]


def test_what_vanishes_teaches_nothing() -> None:
    assert learnt([0.9, 0.9], 3, scale=0.0).values(GUESS).tolist() == [GUESS, GUESS]
    coefficients = Coefficients()  # a fixed noise: the second part has no gradient
    y = torch.cat([torch.ones(1, P), torch.zeros(1, P)]).double()
    coefficients.learn(0.2 * y[0], y, GUESS, 1.0)
    assert coefficients.values(GUESS)[1] == GUESS
    assert 0.2 < coefficients.values(GUESS)[0] < 0.3


def test_parts_that_are_alike_share_it() -> None:
    coefficients, row = Coefficients(), torch.ones(P, dtype=torch.float64)
    coefficients.learn(0.8 * row, torch.stack([row, row]), GUESS, 1.0)
    assert float(coefficients.values(GUESS).sum()) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("noise", [math.nan, math.inf, 0.0])
def test_what_is_no_number_teaches_nothing(noise: float) -> None:
    coefficients = learnt([0.02, 0.7])
    before = coefficients.values(GUESS).tolist()
    x, y = draw([0.9, 0.9], torch.Generator().manual_seed(1))
    coefficients.learn(x, y, GUESS, noise)
    coefficients.learn(x, y * 1e200, GUESS, 1.0)  # squares overflow
    assert coefficients.values(GUESS).tolist() == before


def test_one_call_full_of_noise_does_not_outweigh_the_others() -> None:
    coefficients = learnt([0.5, 0.7])
    y = 1e3 * torch.eye(2, P, dtype=torch.float64)
    coefficients.learn(0.0 * y[0], y, GUESS, 1e6)  # says: none of it, with 10^5 times the weight if all were alike
    assert coefficients.values(GUESS).tolist() == pytest.approx([0.5, 0.7], abs=0.2)


def test_a_lasting_change_is_followed() -> None:
    coefficients, generator = learnt([0.5, 0.7]), torch.Generator().manual_seed(2)
    for _ in range(25):
        x, y = draw([0.1, 0.2], generator, 100.0)
        coefficients.learn(x, y, GUESS, float(x.square().sum()))
    assert coefficients.values(GUESS).tolist() == pytest.approx([0.1, 0.2], abs=0.1)


def test_goes_on_from_its_state() -> None:
    first, second = learnt([0.02, 0.7]), Coefficients()
    second.load_state_dict(first.state_dict())
    x, y = draw([0.5, 0.5], torch.Generator().manual_seed(3), 5.0)
    for coefficients in (first, second):
        coefficients.learn(x, y, GUESS, 25.0)
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())
    second.load_state_dict({})  # of an older version
    assert second.values(GUESS).tolist() == [GUESS, GUESS]


def test_lengths_are_costs() -> None:
    root = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    information = root @ root.T + torch.diag(torch.tensor([1e6, 1.0, 1e-6, 1e3], dtype=torch.float64))
    g = torch.tensor([3.0, -1.0, 0.5, 2.0], dtype=torch.float64)
    cost = float(g @ torch.linalg.solve(information, g))
    assert float((by_cost(information) @ g).square().sum()) == pytest.approx(cost, rel=1e-2)  # the ridge
    information[:, 1] = information[1] = 0.0  # of this one nothing is known
    assert bool(torch.isfinite(by_cost(information)).all())
    assert float((by_cost(information) @ torch.eye(4, dtype=torch.float64)[1]).abs().max()) == 0.0
