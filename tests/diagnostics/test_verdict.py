"""Every threshold of the diagnosis, in words: one case just on either side of it, with inputs made by hand.

The numbers stand here a second time on purpose: a threshold that moves must move here too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import scipy.stats

import rtgp
from rtgp.diagnostics._diagnose import _threshold
from rtgp.diagnostics._result import Cost, Diagnosis, HyperparameterBias, ValueBias
from rtgp.diagnostics._settings import JudgementSettings, MeasureSettings
from rtgp.diagnostics._tables import pairs, rows
from rtgp.diagnostics._verdict import amount, verdict

NAN = math.nan
N = 1000
BELOW, ABOVE = 0.999, 1.001  # times a threshold
NOT_AN_OPTIMUM = "(These hyperparameters are not an optimum yet: diagnose again after training.)"


def one(name: str = "noise", shift: float = 0.0, **changes: Any) -> HyperparameterBias:
    """A hyperparameter whose bias was detected."""
    plain = HyperparameterBias(
        name=name,
        value=1.0,
        logarithmic=True,
        gradient=5.0,
        gradient_error=0.0,
        bias=1.0,
        bias_error=0.1,
        detected=True,
        shift=shift,
        shift_error=0.01,
        shift_detected=True,
        probe_sd=2.0,
        truncation_sd=1.0,
        rr_cg_bias=0.0,
        rr_cg_bias_error=0.1,
        cg_probe_sd=2.0,
        rounding=0.0,
    )
    return replace(plain, **changes)


def cost(iterations: int = 20, seconds: float = 1.0) -> Cost:
    return Cost(float(iterations), iterations, iterations, 11, 5, "rademacher", seconds)


def found(*hyperparameters: HyperparameterBias, **changes: Any) -> Diagnosis:
    """CG(20) that used all its iterations, at the optimum, in a precision that serves."""
    plain = Diagnosis(
        method=rtgp.CG(20),
        rr_cg=rtgp.RRCG(),
        n=N,
        dimension=2,
        dtype="float32",
        origin="given",
        draws=8,
        exact=True,
        hyperparameters=hyperparameters or (one(),),
        left_out=(),
        log_det=ValueBias(1.0, 0.1, 0.01),
        quadratic=ValueBias(1.0, -0.1, 0.01),
        cost_in_nats=1.0,
        distance_in_nats=0.0,
        condition=10.0,
        rounding=0.0,
        rounding_limit=0.05,
        rounding_in_nats=0.0,
        float32_failure="",
        iterations_to_percent=(10, 5),
        iteration_cap=100,
        cg_cost=cost(),
        rr_cg_cost=cost(seconds=1.5),
        reasons=(),
        verdict="",
    )
    return replace(plain, **changes)


def sizes(*signed: float, **changes: Any) -> Diagnosis:
    """Hyperparameters of names a, b, ... that would move by these logarithms."""
    return found(*(one(name, shift) for name, shift in zip("abcdef", signed, strict=False)), **changes)


class TestBiased:
    @pytest.mark.parametrize("nats, biased", [(0.1 * BELOW, False), (0.1, True)])
    def test_from_a_tenth_of_a_nat_on(self, nats: float, biased: bool) -> None:
        diagnosis = found(cost_in_nats=nats)
        assert diagnosis.biased is biased
        assert ("removes it" in verdict(diagnosis)) is biased
        assert ("too little to matter" in verdict(diagnosis)) is not biased

    @pytest.mark.parametrize("sd, biased", [(0.1 * ABOVE, True), (0.1 * BELOW, False)])
    def test_without_a_cost_from_a_tenth_of_the_probes_noise_on(self, sd: float, biased: bool) -> None:
        assert found(one(bias=-2.0 * sd, probe_sd=2.0), cost_in_nats=NAN).biased is biased

    def test_only_what_was_detected_counts(self) -> None:
        chance = one(detected=False, bias=100.0)
        assert not found(chance, cost_in_nats=50.0).biased
        assert not found(chance, one(bias=0.0), cost_in_nats=NAN).biased
        assert found(chance, one(bias=1.0), cost_in_nats=NAN).biased

    def test_words(self) -> None:
        words = verdict(sizes(0.25, cost_in_nats=1.23))
        assert words == (
            "CG(20) would overestimate the a (by about 28%), which costs about 1.2 nats of log marginal likelihood. "
            "RR-CG costs 1.5x and removes it (its truncation adds 12% to the noise of its gradient)."
        )

    def test_words_where_the_cost_is_not_known(self) -> None:
        assert verdict(sizes(-0.25, cost_in_nats=NAN)).startswith("CG(20) would underestimate the a (by about 22%). ")

    @pytest.mark.parametrize("nats, words", [(1000.0, "about 1e+03 nats"), (1001.0, "more log marginal likelihood")])
    def test_from_a_thousand_nats_on_no_figure_is_given(self, nats: float, words: str) -> None:
        assert f", which costs {words}" in verdict(found(cost_in_nats=nats))
        assert ("than a first-order prediction can say" in verdict(found(cost_in_nats=nats))) is (nats > 1000.0)


class TestNotBiased:
    def test_converged_by_one_iteration(self) -> None:
        little = {"cost_in_nats": 0.01}
        words = verdict(found(cg_cost=cost(19), **little))
        assert words == (
            "CG(20) has converged here: every series ended by itself, after 19 iterations at most. The roulette makes "
            "no difference to the result; RR-CG costs 1.5x."
        )
        assert "converged" not in verdict(found(cg_cost=cost(20), **little))

    def test_detected_but_too_little(self) -> None:
        words = verdict(found(one(shift=-0.02), one("mean", 9.0, logarithmic=False), cost_in_nats=0.012))
        assert words == (
            "CG(20) is biased here, but too little to matter: it would move no hyperparameter by more than 2%, at a "
            "cost of 0.012 nats of log marginal likelihood. RR-CG costs 1.5x and would end at the same place."
        )
        assert "by more than a tenth of its noise, at" in verdict(found(one(shift=NAN), cost_in_nats=0.01))

    def test_nothing_detected(self) -> None:
        words = verdict(found(one(detected=False)))
        assert words == (
            "CG(20) shows no bias here, in 8 draws. The roulette makes no difference to the result; RR-CG costs 1.5x."
        )


class TestPrecision:
    @pytest.mark.parametrize("rounding, told", [(0.05, False), (0.05 * ABOVE, True)])
    def test_beyond_the_limit_of_rounding(self, rounding: float, told: bool) -> None:
        words = verdict(found(rounding=rounding))
        assert ("float32 is too coarse here, for every method alike" in words) is told
        assert ("is too coarse" in verdict(found(rounding=rounding, rounding_limit=rounding))) is False

    @pytest.mark.parametrize("nats, told", [(0.1 * BELOW, False), (0.1, True)])
    def test_or_where_it_costs_a_tenth_of_a_nat(self, nats: float, told: bool) -> None:
        assert ("is too coarse here" in verdict(found(rounding_in_nats=nats))) is told

    def test_words(self) -> None:
        words = verdict(found(rounding=0.2, rounding_in_nats=3.0))
        assert words.startswith(
            "float32 is too coarse here, for every method alike: rounding the kernel matrix amounts to 0.2 times the "
            "noise (trusted up to 0.05) and costs about 3 nats of log marginal likelihood; use float64, or raise the "
            "lower bound of the noise. CG(20) "
        )
        unknown = verdict(found(rounding=0.2, rounding_in_nats=NAN))
        assert "and costs an unknown part of the log marginal likelihood;" in unknown

    def test_a_failure_is_said_instead(self) -> None:
        words = verdict(found(float32_failure="Not positive definite: row 3.", rounding=0.2))
        assert words.startswith(
            "float32 cannot serve this system (Not positive definite): use float64, in which all else here was "
            "measured. CG(20) "
        )
        assert "too coarse" not in words


class TestOptimum:
    @pytest.mark.parametrize("distance, told", [(0.01 * N, False), (0.01 * N * ABOVE, True)])
    def test_a_hundredth_of_a_nat_per_point_is_near(self, distance: float, told: bool) -> None:
        assert verdict(found(distance_in_nats=distance)).endswith(NOT_AN_OPTIMUM) is told

    @pytest.mark.parametrize("distance, told", [(50.0, False), (50.0 * ABOVE, True)])
    def test_and_so_is_what_bias_costs(self, distance: float, told: bool) -> None:
        assert (NOT_AN_OPTIMUM in verdict(found(cost_in_nats=50.0, distance_in_nats=distance))) is told


class TestEffect:
    @pytest.mark.parametrize("shift, named", [(0.01, True), (0.01 * BELOW, False), (-0.01, True)])
    def test_a_shift_of_a_hundredth_is_named(self, shift: float, named: bool) -> None:
        words = verdict(sizes(shift))
        assert (f"would {'over' if shift > 0 else 'under'}estimate the a" in words) is named
        assert ("is biased here, though no hyperparameter alone would move by much, which costs" in words) is not named

    def test_only_shifts_beyond_chance(self) -> None:
        assert "though no hyperparameter" in verdict(found(one(shift=0.5, shift_detected=False)))

    def test_the_mean_where_there_is_nothing_else(self) -> None:
        mean = one("mean", -0.004, logarithmic=False)
        assert "would underestimate the mean (by about 0.004)" in verdict(found(mean, one(shift=0.005)))
        assert "mean" not in verdict(found(mean, one(shift=0.5)))

    def test_up_and_down(self) -> None:
        assert verdict(sizes(0.25, -0.25, 0.1)).startswith(
            "CG(20) would overestimate the a (by about 28%) and the c (by about 11%) and underestimate the b (by about "
            "22%), which costs"
        )

    def test_many_lengthscales_are_counted(self) -> None:
        scales = [one(f"lengthscale[{i}]", shift) for i, shift in enumerate((0.1, 0.3, -0.2, 0.001))]
        assert verdict(found(*scales)).startswith(
            "CG(20) would overestimate 2 of 4 lengthscales (most of all lengthscale[1], by about 35%) and "
            "underestimate 1 of 4 lengthscales (lengthscale[2], by about 18%), which"
        )


@pytest.mark.parametrize(
    "shift, words",
    [
        (math.log(2.0) * BELOW, "by about 1e+02%"),
        (-math.log(2.0) * BELOW, "by about 50%"),
        (math.log(2.0) * ABOVE, "by a factor of about 2"),
        (-math.log(4.0), "by a factor of about 4"),
        (math.log(10.0) * BELOW, "by a factor of about 10"),
        (math.log(10.0) * ABOVE, "by far"),
        (-math.log(10.0) * ABOVE, "by far"),
        (0.01, "by about 1%"),
    ],
)
def test_amounts(shift: float, words: str) -> None:
    assert amount(one(shift=shift)) == words


def test_the_amount_of_a_mean() -> None:
    assert amount(one(shift=-20.0, logarithmic=False)) == "by about 20"


class TestTables:
    @pytest.mark.parametrize(
        "shift, words",
        [
            (math.log(2.0) * BELOW, "+1e+02% *"),
            (-math.log(2.0) * BELOW, "-50% *"),
            (math.log(2.0) * ABOVE, "x 2 *"),
            (-math.log(4.0), "x 0.25 *"),
            (8.0, "x 3e+03 *"),
            (50.0, "x 8.1e+03 *"),
            (NAN, "?"),
        ],
    )
    def test_shifts(self, shift: float, words: str) -> None:
        assert rows(found(one(shift=shift)))[0][4] == words

    @pytest.mark.parametrize("size, listed", [(1e-6 * ABOVE, 2), (1e-6 * BELOW, 1)])
    def test_what_is_a_millionth_of_the_largest_is_left_out(self, size: float, listed: int) -> None:
        small = one("idle", gradient=-20.0 * size, bias=0.0, probe_sd=0.0)
        assert len(rows(found(one(gradient=20.0), small))) == listed
        small = one("idle", gradient=0.0, bias=20.0 * size, probe_sd=0.0)
        assert len(rows(found(one(gradient=20.0), small))) == listed

    def test_the_noise_that_truncation_adds(self) -> None:
        """sqrt(1 + mean of squared ratios) - 1, over hyperparameters that have noise of their own."""
        noisy = one(truncation_sd=3.0, probe_sd=2.0), one(truncation_sd=1.0, probe_sd=2.0)
        mean = one("mean", logarithmic=False, truncation_sd=100.0)
        exact = one(probe_sd=0.0, truncation_sd=100.0)
        assert found(*noisy, mean, exact).extra_noise == pytest.approx(math.sqrt(2.25) - 1.0)

    def test_the_effect_of_rounding(self) -> None:
        worst = one(rounding=-0.3, probe_sd=2.0), one(rounding=0.1, probe_sd=1.0)
        assert found(*worst).rounding_effect == pytest.approx(0.15)
        assert "at most 0.1 of their sd" in dict(pairs(found(one(rounding=-0.2))))["rounding"]


def test_a_false_alarm_in_a_hundred_diagnoses() -> None:
    """Bonferroni over 4 hyperparameters: |t| with 7 degrees of freedom beyond it has probability 0.01 / 4."""
    for draws, count in ((8, 4), (2, 1), (16, 20)):
        beyond = 2.0 * scipy.stats.t(draws - 1).sf(_threshold(draws, count, JudgementSettings().false_alarm))
        assert beyond == pytest.approx(0.01 / count)


@pytest.mark.parametrize("n, draws", [(3000, 16), (3001, 8), (20_000, 8), (20_001, 4)])
def test_draws_by_default(n: int, draws: int) -> None:
    assert MeasureSettings().draws_for(n) == draws
