"""E[w_j] = 1, exactly, by enumerating every outcome of the real drawing code; and what that check can refuse."""

from __future__ import annotations

import numpy as np
import pytest

from rtgp.truncation import (
    ExponentialDecay,
    ResidualDriven,
    coupled_pair,
    estimate,
    fixed,
    russian_roulette,
    single_sample,
    survival_path,
)
from truncation.enumeration import cells, expectation, pair_survival, weights_along, with_proxies
from truncation.laws import ALL, FULL, LENGTH
from truncation.reference import survival_table

INCREMENTS = [0.85**j * (1 + 0.5 * np.cos(j)) for j in range(LENGTH)]
TOTAL = sum(INCREMENTS)
NO_PROXIES = [1.0] * LENGTH


def wandering_proxies(seed: int) -> list[float]:
    """Falling on the whole, but rising about every other step, as residuals do."""
    noise = np.random.default_rng(seed).normal(size=LENGTH)
    return [float(0.87**j * np.exp(0.6 * z)) for j, z in enumerate(noise)]


def settings() -> list:
    """(rule, proxies, S_1, ..., S_{H+1} from the reference) for every distribution and for path-driven rules."""
    rows = [pytest.param(law, NO_PROXIES, survival_table(law)[: LENGTH + 1], id=repr(law)[:60]) for law in ALL]
    for tau, seed in [(0.3, 0), (0.3, 1), (2.0, 2)]:
        proxies = wandering_proxies(seed)
        running = np.minimum.accumulate([1.0, *(min(1.0, rho / tau) for rho in proxies[1:])])
        rows.append(pytest.param(ResidualDriven(tau), proxies, running, id=f"ResidualDriven({tau}), path {seed}"))
    return rows


@pytest.mark.parametrize("rule, proxies, survival", settings())
class TestRoulette:
    def test_weights(self, rule, proxies, survival):
        mean = expectation(lambda u: weights_along(russian_roulette(rule, uniforms=u), proxies), survival, draws=1)
        np.testing.assert_allclose(mean, 1.0, atol=1e-10)

    def test_estimate(self, rule, proxies, survival):
        def value(u):
            return np.array(estimate(with_proxies(INCREMENTS, proxies), russian_roulette(rule, uniforms=u)))

        np.testing.assert_allclose(expectation(value, survival, draws=1), TOTAL, rtol=1e-10)

    def test_coupled_pair(self, rule, proxies, survival):
        """All three draws have E[w_j] = 1, and the first two are independent: E[w_j^(1) w_k^(2)] = 1."""

        def moments(u):
            weights = weights_along(coupled_pair(rule, uniforms=u), proxies)  # (H, 3)
            return np.concatenate([weights, np.outer(weights[:, 0], weights[:, 1])], axis=1)  # (H, 3 + H)

        # The reference's rounding of 1 - sqrt(1 - M) moves a breakpoint by 1e-16, the price of a product of weights.
        np.testing.assert_allclose(expectation(moments, pair_survival(survival), draws=2), 1.0, atol=1e-10)


@pytest.mark.parametrize("law", FULL, ids=repr)
class TestSingleSample:
    def test_weights(self, law):
        survival = survival_table(law)[: LENGTH + 1]

        def value(u):
            weighting = single_sample(law, uniforms=u)
            # The run is stopped by its length, so a support that ends with it is never overrun.
            return weights_along(weighting, NO_PROXIES[: min(LENGTH, *weighting.truncations)] or NO_PROXIES)

        mean = np.zeros(LENGTH)
        for u, length in cells(survival):
            rows = value([u])[:, 0]
            mean[: len(rows)] += length * rows
        np.testing.assert_allclose(mean, 1.0, atol=1e-10)

    @pytest.mark.parametrize("kind", ["sequential", "random access"])
    def test_estimate(self, law, kind):
        class Series:
            length = LENGTH

            def term(self, j):
                return INCREMENTS[j - 1]

        def value(u):
            series = Series() if kind == "random access" else with_proxies(INCREMENTS, NO_PROXIES)
            return np.array(estimate(series, single_sample(law, uniforms=u)))

        mean = expectation(value, survival_table(law)[: LENGTH + 1], draws=1)
        np.testing.assert_allclose(mean, TOTAL, rtol=1e-10)


def test_independent_draws_of_one_run():
    """Two roulettes that share a run: the product of their estimates has the product of the sums as its mean."""
    law = ExponentialDecay(0.2, 3)

    def value(u):
        first, second = estimate(with_proxies(INCREMENTS, NO_PROXIES), russian_roulette(law, draws=2, uniforms=u))
        return np.array([first, second, first * second])

    mean = expectation(value, survival_table(law)[: LENGTH + 1], draws=2)
    np.testing.assert_allclose(mean, [TOTAL, TOTAL, TOTAL**2], rtol=1e-10)


@pytest.mark.parametrize("m", [1, 5, 39])
def test_fixed_truncation_fails_the_check(m):
    """Power: the same enumeration, run on the biased rule, must not pass."""
    mean = expectation(lambda _: weights_along(fixed(m), NO_PROXIES), [0.5], draws=1)
    assert np.all(mean[:m] == 1)
    assert np.all(mean[m:] == 0)
    (value,) = estimate(with_proxies(INCREMENTS, NO_PROXIES), fixed(m))
    assert abs(value - TOTAL) > 1e-3 * 0.85**m


def test_a_path_that_rises_needs_the_running_minimum():
    """Weights 1 / (proposed survival) are biased once the proposals rise; the driver's are not."""
    proxies, rule = wandering_proxies(0), ResidualDriven(0.3)
    proposed = np.array([1.0, *(min(1.0, rho / 0.3) for rho in proxies[1:])])
    assert np.any(np.diff(proposed) > 0)

    def naive(u):
        alive = np.minimum.accumulate(u[0] <= proposed)  # a draw that has ended cannot come back
        return alive / proposed

    driver = expectation(lambda u: weights_along(russian_roulette(rule, uniforms=u), proxies), proposed, draws=1)
    np.testing.assert_allclose(driver, 1.0, atol=1e-10)
    assert np.abs(expectation(naive, proposed, draws=1) - 1).max() > 0.3


def test_survival_path_is_what_the_driver_uses():
    proxies, rule = wandering_proxies(1), ResidualDriven(0.3)
    weighting = russian_roulette(rule, uniforms=[1e-9])
    weights_along(weighting, proxies)
    assert weighting.survival == survival_path(rule, proxies)
    assert weighting.survival[0] == 1.0


class TestVarianceBound:
    """An error below kappa proxy_j gives Var <= (kappa tau)^2 with weights 1/M, 7/3 of it with 1/S (docs/theory)."""

    KAPPA, TAU = 3.0, 0.2

    def variances(self, errors, proxies) -> np.ndarray:
        """Var of (first of the pair, longest) over (kappa tau)^2; errors and proxies after 0, 1, ..., H increments."""
        increments = -np.diff(errors)  # e_{j-1} - e_j, and e_H = 0: the sum is e_0
        longest = np.minimum.accumulate([1.0, *(min(1.0, rho / self.TAU) for rho in proxies[1:-1])])

        def value(u):
            weighting = coupled_pair(ResidualDriven(self.TAU), uniforms=[u[0], u[0]])
            weights = weights_along(weighting, proxies[:-1])
            first = increments @ weights[:, 0]
            return np.array([first, first**2])

        def value_longest(u):
            estimated = increments @ weights_along(russian_roulette(ResidualDriven(self.TAU), uniforms=u), proxies[:-1])
            return np.array([estimated[0], estimated[0] ** 2])

        single = expectation(value, pair_survival(longest), draws=1)
        whole = expectation(value_longest, longest, draws=1)
        np.testing.assert_allclose([single[0], whole[0]], errors[0], rtol=1e-9)
        return np.array([m[1] - m[0] ** 2 for m in (single, whole)]) / (self.KAPPA * self.TAU) ** 2

    @pytest.mark.parametrize("seed", range(30))
    def test_holds_on_random_paths(self, seed):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(2, 60))
        decay = rng.uniform(0.5, 0.98)
        proxies = decay ** np.arange(count + 1) * np.exp(rng.uniform(0, 1.5) * rng.normal(size=count + 1))
        proxies[-1] = 0.0
        tightness = 1.0 if seed % 2 else rng.uniform(0, 1, count + 1)
        errors = self.KAPPA * proxies * rng.choice([-1.0, 1.0], count + 1) * tightness
        first, longest = self.variances(errors, proxies)
        assert first <= 7 / 3 * (1 + 1e-9)
        assert longest <= 1 + 1e-9

    def test_is_sharp(self):
        """Power: a proxy that falls slowly comes within 3% of both bounds."""
        proxies = np.append(0.97 ** np.arange(500), 0.0)
        first, longest = self.variances(self.KAPPA * proxies, proxies)
        assert 0.97 * 7 / 3 < first <= 7 / 3
        assert 0.97 < longest <= 1
