"""Random truncation on random series: expectations by enumeration of every outcome, for laws drawn at random."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from properties.tries import examples
from rtgp.truncation import (
    ExponentialDecay,
    Geometric,
    PowerLaw,
    ResidualDriven,
    SurvivalRule,
    Tabulated,
    TruncationDistribution,
    Uniform,
    coupled_pair,
    estimate,
    russian_roulette,
    single_sample,
    survival_path,
)
from truncation.enumeration import expectation, pair_survival, weights_along, with_proxies

_unit = st.floats(0.02, 1.0)
_terms = st.floats(-10.0, 10.0).map(lambda x: round(x, 3))


@st.composite
def tabulated(draw: st.DrawFn, length: int, gaps: bool) -> Tabulated:
    """Any survival that never rises; with `gaps` it may stay, so that some J are never drawn."""
    ratios = draw(st.lists(_unit if gaps else st.floats(0.02, 0.98), min_size=length - 1, max_size=length - 1))
    return Tabulated([1.0, *np.maximum(np.cumprod(ratios), 1e-9 * 0.5 ** np.arange(length - 1)).tolist()])


@st.composite
def laws(draw: st.DrawFn, length: int, gaps: bool = True) -> TruncationDistribution:
    """A law that reaches `length`; without `gaps`, of positive probability at each of 1, ..., length."""
    first = draw(st.integers(1, length)) if gaps else 1
    last = draw(st.one_of(st.none(), st.integers(length + 1, length + 20)))
    kind = draw(st.sampled_from(["exponential", "geometric", "power", "uniform", "tabulated"]))
    if kind == "exponential":
        minimum = draw(st.floats(first, first + 0.9)) if gaps else 1
        return ExponentialDecay(draw(st.floats(0.02, 1.5)), minimum, last)
    if kind == "geometric":
        return Geometric(draw(st.floats(0.02, 0.9)), first, last)
    if kind == "power":
        return PowerLaw(draw(st.floats(1.1, 3.0)), first, last)
    if kind == "uniform":
        return Uniform(first, last or length)
    return draw(tabulated(length, gaps))


@st.composite
def paths(draw: st.DrawFn, length: int) -> list[float]:
    """Error proxies before each increment: anything positive, rising and falling."""
    steps = draw(st.lists(st.floats(0.3, 1.6), min_size=length, max_size=length))
    return [1.0, *np.cumprod(steps)[:-1].tolist()]


@st.composite
def settings(draw: st.DrawFn) -> tuple[list[float], SurvivalRule, list[float]]:
    """(increments of a series, rule, proxies before each increment)"""
    increments = draw(st.lists(_terms, min_size=1, max_size=12))
    proxies = draw(paths(len(increments)))
    follows = draw(st.booleans())
    rule = ResidualDriven(draw(st.floats(0.05, 2.0))) if follows else draw(laws(len(increments)))
    return increments, rule, proxies


def breakpoints(rule: SurvivalRule, proxies: Sequence[float]) -> np.ndarray:
    return np.array(survival_path(rule, proxies))


def size(increments: Sequence[float], least: float) -> float:
    """Of the numbers that a sum with weights up to 1 / least is made of."""
    return float(np.abs(increments).sum()) / least + 1.0


@given(setting=settings())
@examples(80)
def test_roulette_is_unbiased(setting: tuple[list[float], SurvivalRule, list[float]]) -> None:
    increments, rule, proxies = setting
    survival = breakpoints(rule, proxies)

    def value(u: list[float]) -> np.ndarray:
        return np.array(estimate(with_proxies(increments, proxies), russian_roulette(rule, uniforms=u)))

    mean = expectation(value, survival, draws=1)
    np.testing.assert_allclose(mean, sum(increments), rtol=0, atol=1e-13 * size(increments, survival[-1]))


@given(setting=settings())
@examples(40)
def test_weights_of_the_coupled_pair(setting: tuple[list[float], SurvivalRule, list[float]]) -> None:
    """E[w_j] = 1 for all three draws, E[w_j w'_k] = 1 for the two solves, J_longest = max, and no weight below 1."""
    increments, rule, proxies = setting
    increments, proxies = increments[:6], proxies[:6]
    survival = breakpoints(rule, proxies)
    single = pair_survival(survival)
    assume(single[-1] > 1e-6)  # below, the reference's own 1 - sqrt(1 - M) is rounding

    def moments(u: list[float]) -> np.ndarray:
        weighting = coupled_pair(rule, uniforms=u)
        weights = weights_along(weighting, proxies)
        first, second, longest = weights.T
        assert np.all((weights == 0) | (weights >= 1 - 1e-12))
        np.testing.assert_array_equal(longest > 0, (first > 0) | (second > 0))
        return np.concatenate([weights, np.outer(first, second)], axis=1)

    mean = expectation(moments, single, draws=2)
    np.testing.assert_allclose(mean, 1.0, rtol=0, atol=1e-14 / single[-1] ** 2 + 1e-12)


@st.composite
def complete(draw: st.DrawFn) -> tuple[list[float], TruncationDistribution]:
    increments = draw(st.lists(_terms, min_size=1, max_size=12))
    return increments, draw(laws(len(increments), gaps=False))


@given(setting=complete(), sequential=st.booleans())
@examples(60)
def test_single_sample_is_unbiased(setting: tuple[list[float], TruncationDistribution], sequential: bool) -> None:
    increments, law = setting
    length = len(increments)
    j = torch.arange(1, length + 2)
    survival, pmf = law.log_survival(j).exp().numpy(), law.log_pmf(j[:-1]).exp().numpy()

    class Series:
        def __init__(self) -> None:
            self.length = length

        def term(self, k: int) -> float:
            return increments[k - 1]

    def value(u: list[float]) -> np.ndarray:
        series = with_proxies(increments, [1.0] * length) if sequential else Series()
        return np.array(estimate(series, single_sample(law, uniforms=u)))

    mean = expectation(value, survival, draws=1)
    np.testing.assert_allclose(mean, sum(increments), rtol=0, atol=1e-13 * size(increments, pmf.min()))


@given(law=st.integers(1, 30).flatmap(lambda length: laws(length)))
@examples(80)
def test_laws_are_probabilities(law: TruncationDistribution) -> None:
    """The survival is the sum of the probabilities beyond, and both agree with what is drawn from a uniform number."""
    last = law.maximum or 400
    j = torch.arange(1, last + 1)
    pmf, survival = law.log_pmf(j).exp(), law.log_survival(torch.arange(1, last + 2)).exp()
    assert float(survival[0]) == 1.0
    assert bool((survival.diff() <= 0).all())
    np.testing.assert_allclose((survival[:-1] - survival[1:]).numpy(), pmf.numpy(), rtol=1e-9, atol=1e-14)
    assert math.isclose(float(pmf.sum() + survival[-1]), 1.0, rel_tol=1e-12)
    inside = (survival[:-1] + survival[1:]) / 2
    likely = pmf > 1e-12
    assert torch.equal(law.truncation_at(inside[likely]), j[likely])


@given(setting=settings(), draws=st.integers(1, 4), seed=st.integers(0, 99))
@examples(40)
def test_draws_of_one_run_are_those_of_separate_runs(
    setting: tuple[list[float], SurvivalRule, list[float]], draws: int, seed: int
) -> None:
    """Sharing a run changes nothing: each estimate is what its own uniform number alone gives."""
    increments, rule, proxies = setting
    uniforms = (1.0 - np.random.default_rng(seed).random(draws)).tolist()
    together = estimate(with_proxies(increments, proxies), russian_roulette(rule, draws, uniforms=uniforms))
    for u, value in zip(uniforms, together, strict=True):
        (alone,) = estimate(with_proxies(increments, proxies), russian_roulette(rule, uniforms=[u]))
        assert value == alone
