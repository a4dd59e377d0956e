"""`estimate`: how far each kind of series is followed, and what comes out."""

from __future__ import annotations

import math

import pytest
import torch

from rtgp.errors import TruncationError
from rtgp.truncation import (
    ExponentialDecay,
    Fixed,
    PowerLaw,
    ResidualDriven,
    Tabulated,
    Uniform,
    coupled_pair,
    estimate,
    fixed,
    russian_roulette,
    single_sample,
)


class Counted:
    """A sequential series of 1/2^j that counts how far it was followed."""

    def __init__(self, length: int = 50):
        self.length_, self.made = length, 0

    def __iter__(self):
        for j in range(1, self.length_ + 1):
            self.made = j
            yield 0.5**j, 1.0


class Terms:
    """A random-access series of 1/2^j that remembers which terms were made."""

    def __init__(self, length: int | None):
        self.length = length
        self.made: list[int] = []

    def term(self, j: int) -> float:
        self.made.append(j)
        return 0.5**j


class Ladder(Terms):
    def __init__(self, indices: range):
        super().__init__(indices[-1])
        self.indices = indices


class TestSequential:
    def test_is_not_advanced_past_the_longest_draw(self):
        series = Counted()
        weighting = russian_roulette(ExponentialDecay(0.3, 4), draws=2, uniforms=[0.2, 0.05])
        estimate(series, weighting)
        assert series.made == max(weighting.truncations)

    def test_fixed(self):
        series = Counted()
        assert estimate(series, fixed(3)) == (pytest.approx(0.875),)
        assert series.made == 3

    def test_runs_to_the_end_without_a_truncation(self):
        assert estimate(Counted(20), fixed(None)) == (pytest.approx(1 - 0.5**20),)

    def test_a_support_that_ends_with_the_series_is_no_error(self):
        for weighting in (russian_roulette(Fixed(5)), coupled_pair(Fixed(5)), single_sample(Uniform(1, 5))):
            estimate(Counted(5), weighting)
        assert estimate(Counted(5), russian_roulette(Fixed(5))) == (pytest.approx(1 - 0.5**5),)

    def test_a_support_that_ends_before_the_series_is_an_error(self):
        with pytest.raises(TruncationError, match=r"P\(J >= 6\) is 0"):
            estimate(Counted(6), russian_roulette(Fixed(5)))

    def test_follows_the_proxies_of_the_series(self):
        steps, rule = [(1.0, 0.5), (2.0, 0.1), (4.0, 0.0)], ResidualDriven(1.0)
        (whole,), (cut,) = (estimate(steps, russian_roulette(rule, uniforms=[u])) for u in (0.05, 0.3))
        assert whole == pytest.approx(1 + 2 / 0.5 + 4 / 0.1)
        assert cut == pytest.approx(1 + 2 / 0.5)

    def test_tensors(self):
        steps = [(torch.full((2, 3), 0.5**j, dtype=torch.float64), 1.0) for j in range(1, 5)]
        first, second, longest = estimate(
            steps, coupled_pair(Uniform(1, 4), generator=torch.Generator().manual_seed(0))
        )
        assert first.shape == second.shape == longest.shape == (2, 3)
        assert first.dtype == torch.float64

    def test_gradients_pass_through(self):
        x = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        (value,) = estimate(
            ((x**j, 1.0) for j in range(1, 4)), russian_roulette(Tabulated([1, 0.5, 0.25]), uniforms=[0.4])
        )
        value.backward()
        assert float(x.grad) == pytest.approx(1 + 2 * 2 * 0.3)

    def test_empty_series(self):
        assert estimate([], russian_roulette(ResidualDriven(), draws=2)) == (0.0, 0.0)


class TestRandomAccess:
    def test_single_sample_makes_one_term_per_distinct_truncation(self):
        series = Terms(10)
        law = Uniform(1, 10)
        values = estimate(series, single_sample(law, draws=3, uniforms=[0.75, 0.31, 0.72]))
        assert series.made == [3, 7]
        assert values == tuple(pytest.approx(10 * 0.5**j) for j in (3, 7, 3))

    def test_single_sample_beyond_the_series_is_zero(self):
        series = Terms(3)
        assert estimate(series, single_sample(Uniform(1, 10), uniforms=[0.1])) == (0.0,)
        assert series.made == []

    def test_roulette_makes_the_terms_up_to_its_truncation(self):
        series = Terms(10)
        weighting = russian_roulette(Uniform(1, 10), uniforms=[0.65])
        assert estimate(series, weighting)[0] == pytest.approx(sum(0.5**j * 10 / (11 - j) for j in range(1, 5)))
        assert series.made == [1, 2, 3, 4]

    def test_length_is_checked_before_any_term_is_made(self):
        for weighting in (russian_roulette(Uniform(1, 5)), single_sample(Uniform(1, 5)), coupled_pair(Uniform(1, 5))):
            series = Terms(6)
            with pytest.raises(TruncationError):
                estimate(series, weighting)
            assert series.made == []

    def test_without_an_end(self):
        series = Terms(None)
        weighting = russian_roulette(ExponentialDecay(0.5), uniforms=[0.01])
        estimate(series, weighting)
        assert series.made == list(range(1, weighting.truncations[0] + 1))
        assert estimate(Terms(None), single_sample(PowerLaw(2.0), uniforms=[1.0])) == (pytest.approx(math.pi**2 / 12),)

    def test_gaps_are_refused_without_an_end_too(self):
        with pytest.raises(TruncationError, match=r"P\(J = 1\) is 0"):
            estimate(Terms(None), single_sample(ExponentialDecay(0.1, 5)))

    def test_ladder(self):
        """Terms at 5, 15, 25 only: the expectation over the rungs is their sum."""
        law, indices = PowerLaw(1.0, 5, 25, step=10), range(5, 26, 10)
        survival = [math.exp(float(law.log_survival(j))) for j in (*indices, 26)]
        mean = 0.0
        for rung, j in enumerate(indices):
            series = Ladder(indices)
            u = (survival[rung] + survival[rung + 1]) / 2
            (value,) = estimate(series, single_sample(law, uniforms=[u]))
            assert series.made == [j]
            mean += value * (survival[rung] - survival[rung + 1])
        assert mean == pytest.approx(0.5**5 + 0.5**15 + 0.5**25, rel=1e-12)

    def test_roulette_on_a_ladder_makes_its_rungs_only(self):
        series = Ladder(range(2, 11, 4))
        estimate(series, russian_roulette(Uniform(1, 10), uniforms=[0.35]))
        assert series.made == [2, 6]
