"""The drivers: what they hand out, when they end, and what they refuse."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtgp.errors import SettingError, TruncationError
from rtgp.truncation import (
    ExponentialDecay,
    Fixed,
    Geometric,
    PowerLaw,
    ResidualDriven,
    SurvivalRule,
    Tabulated,
    Uniform,
    coupled_pair,
    fixed,
    russian_roulette,
    single_sample,
    survival_path,
    uniforms,
)
from truncation.enumeration import expectation, weights_along


class TestUniforms:
    def test_lie_in_the_half_open_interval(self):
        values = uniforms(10_000, torch.Generator().manual_seed(0))
        assert len(values) == 10_000
        assert all(0 < u <= 1 for u in values)
        assert abs(np.mean(values) - 0.5) < 5 * math.sqrt(1 / 12 / 10_000)  # false alarm 6e-7
        assert any(u != float(np.float32(u)) for u in values)  # float64, not widened float32

    def test_come_from_the_generator(self):
        same = [uniforms(3, torch.Generator().manual_seed(5)) for _ in range(2)]
        assert same[0] == same[1]
        state = torch.random.get_rng_state()
        uniforms(3, torch.Generator().manual_seed(5))
        assert torch.equal(state, torch.random.get_rng_state())


class TestRoulette:
    def test_one_run(self):
        weighting = russian_roulette(Tabulated([1.0, 0.5, 0.25, 0.1]), draws=3, uniforms=[0.3, 1.0, 0.25])
        assert weighting.draws == 3
        assert weighting.next(1.0) == (1.0, 1.0, 1.0)
        assert weighting.next(1.0) == (2.0, 0.0, 2.0)
        assert weighting.next(1.0) == (0.0, 0.0, 4.0)  # U = S_3 still survives
        assert weighting.next(1.0) is None
        assert weighting.next(1.0) is None
        assert weighting.truncations == (2, 1, 3)
        assert weighting.survival == [1.0, 0.5, 0.25]

    def test_a_dead_draw_stays_dead(self):
        weighting = russian_roulette(ResidualDriven(1.0), draws=2, uniforms=[0.5, 0.1])
        weights = [weighting.next(proxy) for proxy in (1.0, 0.2, 9.0, 0.3)]
        assert [w[0] for w in weights] == [1.0, 0.0, 0.0, 0.0]
        assert [w[1] for w in weights] == [1.0, 5.0, 5.0, 5.0]  # the running minimum: still S = 0.2

    def test_draws_agree_with_sampling_ahead(self):
        law, generator = ExponentialDecay(0.05, 80), torch.Generator()
        weighting = russian_roulette(law, draws=5, generator=generator.manual_seed(3))
        while weighting.next(1.0) is not None:
            pass
        assert weighting.truncations == tuple(law.sample(5, generator.manual_seed(3)).tolist())

    def test_far_tail_weights_are_finite_and_right(self):
        weighting = russian_roulette(ExponentialDecay(0.05, 80), uniforms=[1e-60])
        weights = [weighting.next(1.0)[0] for _ in range(2000)]
        assert weights[-1] == pytest.approx(math.exp(96), rel=1e-13)

    def test_a_series_that_has_ended_ends_the_run(self):
        weighting = russian_roulette(ResidualDriven(0.1), uniforms=[1e-9])
        assert [weighting.next(p) for p in (1.0, 0.05, 0.0, 0.0)] == [(1.0,), (pytest.approx(2.0),), None, None]
        assert weighting.truncations == (2,)

    def test_a_tiny_proxy_is_not_the_end(self):
        weighting = russian_roulette(ResidualDriven(1e30), uniforms=[0.5])
        assert [weighting.next(p) for p in (1.0, 1e-310)] == [(1.0,), None]  # no TruncationError

    @pytest.mark.parametrize("proxy", [math.nan, -1.0])
    def test_a_broken_proxy_is_refused(self, proxy):
        weighting = russian_roulette(ResidualDriven())
        weighting.next(1.0)
        with pytest.raises(TruncationError, match="non-negative"):
            weighting.next(proxy)


class TestCoupledPair:
    def test_survivals(self):
        weighting = coupled_pair(Tabulated([1.0, 0.75, 0.36, 0.19]), uniforms=[0.15, 0.4])
        assert weighting.draws == 3
        got = [weighting.next(1.0) for _ in range(4)]
        # S = 1 - sqrt(1 - M) = 1, .5, .2, .1
        np.testing.assert_allclose(got[:3], [(1, 1, 1), (2, 2, 4 / 3), (5, 0, 1 / 0.36)], rtol=1e-14)
        assert got[3] is None
        assert weighting.truncations == (3, 2, 3)
        np.testing.assert_allclose(weighting.survival, [1, 0.75, 0.36], rtol=1e-15)

    def test_small_survivals_do_not_cancel(self):
        weighting = coupled_pair(Tabulated([1.0, 1e-20]), uniforms=[1e-21, 1.0])
        weighting.next(1.0)
        assert weighting.next(1.0) == (pytest.approx(2e20, rel=1e-14), 0.0, pytest.approx(1e20, rel=1e-14))


class TestSingleSample:
    def test_one_run(self):
        weighting = single_sample(Tabulated([1.0, 0.5, 0.25, 0.1]), draws=2, uniforms=[0.3, 0.2])
        assert weighting.truncations == (2, 3)
        got = [weighting.next(1.0) for _ in range(4)]
        np.testing.assert_allclose(got[:3], [(0, 0), (4, 0), (0, 1 / 0.15)], rtol=1e-14)
        assert got[3] is None

    def test_needs_a_distribution(self):
        with pytest.raises(SettingError, match="'distribution' parameter of single_sample"):
            single_sample(ResidualDriven())


class TestFixed:
    def test_stops_after_m(self):
        weighting = fixed(2, draws=2)
        assert [weighting.next(1.0) for _ in range(3)] == [(1.0, 1.0), (1.0, 1.0), None]
        assert weighting.truncations == (2, 2)
        weighting.require_support(10)  # biased by choice: no error

    def test_none_never_stops(self):
        weighting = fixed(None)
        assert all(weighting.next(0.0) == (1.0,) for _ in range(1000))


class TestSupport:
    """A support that ends before its series is an error, never a silent bias."""

    @pytest.mark.parametrize("law", [Fixed(5), Uniform(1, 5), Tabulated([1, 0.9, 0.8, 0.7, 0.6]), PowerLaw(1.0, 1, 5)])
    @pytest.mark.parametrize("make", [russian_roulette, coupled_pair, single_sample])
    def test_known_length(self, law, make):
        with pytest.raises(TruncationError, match=r"P\(J >= 6\) is 0 .* has 6 terms"):
            make(law).require_support(6)
        if make is not single_sample or law != Fixed(5):
            make(law).require_support(5)

    @pytest.mark.parametrize("make", [russian_roulette, single_sample])
    def test_unknown_length(self, make):
        weighting = make(Uniform(1, 3), uniforms=[0.1])
        for _ in range(3):
            assert weighting.next(1.0) is not None
        with pytest.raises(TruncationError, match=r"P\(J >= 4\) is 0 .* goes on"):
            weighting.next(1.0)

    @pytest.mark.parametrize("make", [russian_roulette, single_sample])
    def test_no_error_where_the_series_has_ended_too(self, make):
        weighting = make(Uniform(1, 3), uniforms=[0.1])
        assert [weighting.next(1.0) is None for _ in range(3)] == [False] * 3
        assert weighting.next(0.0) is None

    @pytest.mark.parametrize("make", [russian_roulette, single_sample])
    def test_no_error_once_every_draw_has_ended(self, make):
        weighting = make(Uniform(1, 3), uniforms=[0.5])
        assert [weighting.next(1.0) is None for _ in range(5)] == [False, False, True, True, True]

    @pytest.mark.parametrize(
        "law", [ExponentialDecay(0.1, 3), PowerLaw(1.0, 1, 41, step=10), Tabulated([1, 0.5, 0.5, 0.2])]
    )
    def test_single_sample_refuses_gaps(self, law):
        """A term with P(J = j) = 0 is lost, although the support reaches further."""
        with pytest.raises(TruncationError, match=r"P\(J = \d\) is 0"):
            single_sample(law).require_support(4)
        with pytest.raises(TruncationError, match=r"P\(J = \d\) is 0"):
            weights_along(single_sample(law, uniforms=[0.15]), [1.0] * 4)

    def test_single_sample_takes_a_ladder(self):
        single_sample(PowerLaw(1.0, 1, 41, step=10)).require_support(41, range(1, 42, 10))
        with pytest.raises(TruncationError, match=r"P\(J = 6\) is 0"):
            single_sample(PowerLaw(1.0, 1, 41, step=10)).require_support(41, range(1, 42, 5))

    def test_rules_without_an_end_serve_any_length(self):
        for rule in (ResidualDriven(), ExponentialDecay(0.1), PowerLaw(2.0)):
            russian_roulette(rule).require_support(10**9)


class TestArguments:
    @pytest.mark.parametrize("bad", [[0.0], [1.5], [0.5, 0.5], [math.nan]])
    def test_uniforms(self, bad):
        with pytest.raises(SettingError, match="'uniforms' parameter of russian_roulette"):
            russian_roulette(ResidualDriven(), uniforms=bad)

    def test_either_generator_or_uniforms(self):
        with pytest.raises(SettingError, match="Got both"):
            russian_roulette(ResidualDriven(), generator=torch.Generator(), uniforms=[0.5])

    def test_draws_and_rule(self):
        with pytest.raises(SettingError, match="'draws' parameter of russian_roulette"):
            russian_roulette(ResidualDriven(), draws=0)
        with pytest.raises(SettingError, match="'rule' parameter"):
            russian_roulette(0.5)
        with pytest.raises(SettingError, match="'m' parameter of fixed"):
            fixed(0)
        with pytest.raises(SettingError, match="'tau' parameter of ResidualDriven"):
            ResidualDriven(0.0)

    def test_protocol(self):
        assert isinstance(ResidualDriven(), SurvivalRule)
        assert isinstance(ExponentialDecay(0.1), SurvivalRule)

    def test_a_rule_without_a_number_is_refused(self):
        class Broken:
            maximum = None

            def log_survival_given(self, j, path):
                return math.nan

        with pytest.raises(TruncationError, match="not a number"):
            russian_roulette(Broken()).next(1.0)


COUNT = 12
integers = st.integers(1, 8)
laws = st.one_of(
    st.builds(ExponentialDecay, st.floats(1e-4, 2.0), st.floats(1, 8), st.none() | st.integers(COUNT, 40)),
    st.builds(Geometric, st.floats(1e-4, 0.9), integers, st.none() | st.integers(COUNT, 40)),
    st.builds(Uniform, integers, st.integers(COUNT, 40)),
    st.builds(PowerLaw, st.floats(1.05, 6.0), integers, st.none(), st.integers(1, 5)),
    st.builds(PowerLaw, st.floats(0.05, 6.0), integers, st.integers(COUNT + 5, 60), st.integers(1, 5)),
    st.lists(st.floats(0.05, 1.0), min_size=COUNT - 1, max_size=20).map(
        lambda ratios: Tabulated(np.cumprod([1.0, *ratios]))
    ),
)
paths = st.lists(st.floats(1e-3, 10.0), min_size=COUNT, max_size=COUNT)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rule=laws | st.builds(ResidualDriven, st.floats(0.01, 5.0)), path=paths)
def test_weights_have_mean_one(rule, path):
    survival = survival_path(rule, path)
    assert all(0 < b <= a <= 1 for a, b in pairwise(survival))
    roulette = expectation(lambda u: weights_along(russian_roulette(rule, uniforms=u), path), survival, draws=1)
    np.testing.assert_allclose(roulette, 1.0, rtol=1e-9)
    single = [m / (1 + math.sqrt(1 - m)) for m in survival]
    pair = expectation(lambda u: weights_along(coupled_pair(rule, uniforms=u), path), single, draws=2)
    np.testing.assert_allclose(pair, 1.0, rtol=1e-9)
