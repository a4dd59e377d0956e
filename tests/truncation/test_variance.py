"""The variance of a roulette, estimated from the run itself: unbiased, by enumeration through the real drawing code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rtgp.truncation import ExponentialDecay, ResidualDriven, coupled_pair, roulette_variance, russian_roulette
from truncation.enumeration import expectation, pair_survival, weights_along

LENGTH = 8
PROXIES = [1.0, 0.5, 0.6, 0.3, 0.1, 0.12, 0.03, 0.01]
INCREMENTS = {
    "of one sign": np.array([0.6**j for j in range(LENGTH)]),
    "of both": np.array([(-0.7) ** j * (1 + 0.2 * j) for j in range(LENGTH)]),
}
RULES = {
    "ResidualDriven(0.4)": (ResidualDriven(0.4), np.minimum.accumulate([min(1.0, p / 0.4) for p in PROXIES])),
    "ExponentialDecay(0.5)": (ExponentialDecay(0.5), np.exp(-0.5 * np.arange(LENGTH))),
}
CASES = [(rule, series) for rule in RULES for series in INCREMENTS]


def variance_from(increments: np.ndarray, inverse_survival: np.ndarray, weights: np.ndarray) -> float:
    return float(roulette_variance(*map(torch.from_numpy, (increments, inverse_survival, weights))))


@pytest.mark.parametrize("rule, series", CASES)
def test_of_a_draw_from_its_own_run(rule, series):
    (law, survival), increments = RULES[rule], INCREMENTS[series]

    def found(u):
        weights = weights_along(russian_roulette(law, uniforms=u), PROXIES)[:, 0]
        value = float(weights @ increments)
        return np.array([value, value**2, variance_from(increments, weights, weights)])

    mean, square, variance = expectation(found, survival, draws=1)
    np.testing.assert_allclose(variance, square - mean**2, rtol=1e-10)


@pytest.mark.parametrize("rule, series", CASES)
def test_of_a_pair_from_the_longer_run(rule, series):
    (law, survival), increments = RULES[rule], INCREMENTS[series]

    def found(u):
        weights = weights_along(coupled_pair(law, uniforms=u), PROXIES)
        first, second = weights[:, 0] @ increments, weights[:, 1] @ increments
        estimated = 0.5 * variance_from(increments, weights.max(1), weights[:, 2])
        return np.array([0.5 * (first + second), 0.25 * (first + second) ** 2, estimated])

    mean, square, variance = expectation(found, pair_survival(survival), draws=2)
    np.testing.assert_allclose(variance, square - mean**2, rtol=1e-10)


def test_none_without_roulette():
    ones = np.ones(LENGTH)
    assert variance_from(INCREMENTS["of one sign"], ones, ones) == 0.0
