"""The decision for float32 or float64: at its limits, said once in a fit, and obeyed by training and prediction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import rtgp
from gp_models import airports, make
from models import Judged, Regression
from rtgp import GPRegressor
from rtgp._baselines.svgp.training import _Descent
from rtgp._precision import (
    SILENT,
    Notices,
    Precision,
    PrecisionLimits,
    PrecisionSettings,
    PrecisionState,
    WorkingPrecision,
    decide,
    decide_after,
    decide_by_products,
    decide_factor,
    decide_prediction,
)
from rtgp.errors import ConvergenceError, InputError, NotPositiveDefiniteError, PrecisionWarning
from rtgp.training import fit
from rtgp.training._problem import Problem

BELOW, ABOVE = 0.999, 1.001  # times a limit
SINGLE, DOUBLE = torch.float32, torch.float64


def limits(dtype: torch.dtype, rounding: float = 0.0, condition: float = 1.0) -> PrecisionLimits:
    return PrecisionLimits(size=100, dtype=dtype, signal=1e3, condition=condition, rounding=rounding)


def said(call: Callable[[], Precision], told: bool) -> str:
    """What is said, "" for nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
        Notices().say(found)
    assert (found.coarse is not None) is told
    assert [one.category for one in caught] == [PrecisionWarning] * told
    return "".join(str(one.message) for one in caught)


class TestDecision:
    @pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
    @pytest.mark.parametrize("factor", [1.0, 7.0])
    @pytest.mark.parametrize("times, told", [(BELOW, False), (ABOVE, True)])
    def test_rounding(self, dtype: torch.dtype, factor: float, times: float, told: bool) -> None:
        words = said(lambda: decide(limits(dtype, 0.05 * times / factor), factor=factor), told)
        if told:
            assert f"{dtype} is too coarse" in words
            assert "rounding the kernel matrix amounts to 0.05 times the noise" in words
            assert "signal 1.0e+03 times the noise, n = 100" in words

    @pytest.mark.parametrize("part, dtype", [(3e-3 * BELOW, SINGLE), (3e-3 * ABOVE, DOUBLE)])
    def test_what_reaches_a_solution(self, part: float, dtype: torch.dtype) -> None:
        found = decide(limits(SINGLE, 1.0), True, felt=lambda error: error * part)
        assert found.dtype is dtype
        assert bool(found.reason) is (dtype is DOUBLE)

    @pytest.mark.parametrize(
        "dtype, condition, told",
        [
            (DOUBLE, 1e14 * BELOW, False),
            (DOUBLE, 1e14 * ABOVE, True),
            (SINGLE, 1e20, False),  # where rounding says all
        ],
    )
    def test_condition(self, dtype: torch.dtype, condition: float, told: bool) -> None:
        words = said(lambda: decide(limits(dtype, condition=condition)), told)
        assert ("its condition number may be 1.0e+14" in words) is told

    @pytest.mark.parametrize("error, told", [(0.015 * BELOW, False), (0.015 * ABOVE, True), (math.nan, False)])
    @pytest.mark.parametrize("wide, remedy", [(True, "computed in float64 from here on"), (False, "Use float64")])
    def test_products(self, error: float, told: bool, wide: bool, remedy: str) -> None:
        words = said(lambda: decide_by_products(error, limits(SINGLE), wide), told)
        if told:
            assert "float32 is too coarse for this system: rounding in its products amounts to 0.015 times" in words
            assert remedy in words
            assert decide_by_products(error, limits(SINGLE), wide, lambda error: 0.5 * error) == Precision(SINGLE)

    @pytest.mark.parametrize(
        "dtype, wide, remedy",
        [
            (SINGLE, False, "Use float64 (model.double()), or raise the lower bound of the noise."),
            (SINGLE, True, "It is computed in float64 from here on, which takes longer and more memory."),
            (DOUBLE, False, "Gradients may be off. Raise the lower bound of the noise."),
        ],
    )
    def test_remedies(self, dtype: torch.dtype, wide: bool, remedy: str) -> None:
        assert said(lambda: decide(limits(dtype, 1.0), wide), True).endswith(remedy)

    @pytest.mark.parametrize("signal", [math.nan, math.inf])
    def test_a_kernel_that_is_not_finite(self, signal: float) -> None:
        with pytest.raises(InputError, match="finite kernel matrix"):
            decide(PrecisionLimits(10, SINGLE, signal, 1.0, 0.0))

    def test_limits_are_those_of_the_diagonal(self) -> None:
        """n = 4, trace 16, eps = 2^-23: rounding = eps / 2 * trace / sqrt(n)."""
        found = PrecisionLimits.of(torch.tensor([1.0, 7.0, 3.0, 5.0]), SINGLE)
        assert (found.size, found.signal, found.condition) == (4, 4.0, 17.0)
        assert found.rounding == 2.0**-21
        assert PrecisionLimits.of(torch.full((4,), 4.0), DOUBLE).rounding == 2.0**-50

    @pytest.mark.parametrize("times, dtype", [(BELOW, SINGLE), (ABOVE, DOUBLE)])
    def test_a_factor_is_in_float64_without_a_word(self, times: float, dtype: torch.dtype) -> None:
        found = decide_factor(limits(SINGLE, condition=1e5 * times), wide=True)
        assert (found.dtype, found.coarse, bool(found.reason)) == (dtype, None, dtype is DOUBLE)
        assert decide_factor(limits(SINGLE, condition=1e6), wide=False).dtype is SINGLE

    @pytest.mark.parametrize("times, dtype", [(BELOW, SINGLE), (ABOVE, DOUBLE)])
    def test_predictions(self, times: float, dtype: torch.dtype) -> None:
        assert decide_prediction(limits(SINGLE, 1e-4 * times)).dtype is dtype
        assert decide_prediction(limits(DOUBLE, 1.0)) == Precision(DOUBLE)

    def test_after_a_failure(self) -> None:
        found = decide_after(NotPositiveDefiniteError("Not definite. Add noise."), SINGLE)
        assert found is not None
        assert (found.dtype, found.reason) == (DOUBLE, "Not definite")
        assert decide_after(ConvergenceError("Too slow."), SINGLE) is not None
        assert decide_after(ConvergenceError("Too slow."), DOUBLE) is None
        assert decide_after(InputError("NaN."), SINGLE) is None

    def test_settings_are_obeyed(self) -> None:
        narrow = PrecisionSettings(rounding=1e-9, condition=10.0, factor=10.0, prediction=1e-9, products=1e-9)
        one = limits(SINGLE, 1e-8, 100.0)
        for found in (
            decide(one, True, settings=narrow),
            decide_factor(one, True, settings=narrow),
            decide_prediction(one, settings=narrow),
            decide_by_products(1e-8, one, True, settings=narrow),
        ):
            assert found.dtype is DOUBLE
        assert decide(limits(DOUBLE, condition=100.0), settings=narrow).coarse is DOUBLE


class TestState:
    def test_it_is_that_of_older_checkpoints(self) -> None:
        """The names and numbers that version 0.1 wrote, with and without what came later."""
        working = WorkingPrecision()
        working.load_state_dict({"warned": True})
        assert working.state == PrecisionState(coarse=True)
        saved = {"warned": False, "warned of float64": True, "measured": 0.25, "reach_size": 3}
        saved |= {"reach_place": torch.tensor([1.0, 2.0]).double(), "reach": torch.tensor(0.5).double()}
        working.load_state_dict(saved)
        assert {**working.findings(), **working.reach_state()} == saved
        with pytest.raises(ValueError, match="'warned' is missing"):
            working.load_state_dict({})

    def test_what_was_found_is_not_said_again_in_another_process(self) -> None:
        x, y = (torch.tensor(one, dtype=SINGLE) for one in coarse_data(60))
        model = Regression(x, y).set(lengthscale=0.3, outputscale=1.0, noise=2e-6)
        first, second = (rtgp.MarginalLogLikelihood(model.likelihood, model, "rr-cg") for _ in range(2))
        with pytest.warns(PrecisionWarning):
            first(model(x), y)
        second._objective.load_state_dict(first._objective.state_dict())
        second(model(x), y)
        assert second.last is not None
        assert (second.last.dtype, bool(second.last.dtype_reason)) == (DOUBLE, True)


class TestNotices:
    def test_each_precision_once(self) -> None:
        notices = Notices()
        with recorded() as caught:
            for dtype in (SINGLE, SINGLE, DOUBLE, SINGLE, DOUBLE):
                notices.say(decide(limits(dtype, 1.0)))
            notices.say(Precision(SINGLE))
            SILENT.say(decide(limits(SINGLE, 1.0)))
        assert [str(one.message)[:13] for one in caught] == ["torch.float32", "torch.float64"]


@contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of precision given within."""
    found: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrecisionWarning)
        yield found
    found += [one for one in caught if issubclass(one.category, PrecisionWarning)]


def coarse_data(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Without noise: training comes to a system that float32 cannot serve."""
    X = np.linspace(0.0, 1.0, n)[:, None]
    return X, np.sin(6.0 * X[:, 0])


WAYS = {
    "rr-cg": {"method": "rr-cg", "optimizer": "adam", "learning_rate": 0.3, "steps": 60},
    "several starts": {"method": "rr-cg", "optimizer": "adam", "learning_rate": 0.3, "steps": 40, "restarts": 2},
    "from a subset": {"method": "rr-cg", "subset_start": 100, "steps": 8},
    "frozen draws": {"method": "rr-cg", "optimizer": "lbfgs", "steps": 10},
}


class TestOnceInAFit:
    @pytest.mark.parametrize("way", WAYS)
    def test_every_way_to_train(self, way: str) -> None:
        """The trials, the starts, Cholesky in its place, the loss at the end: one fit."""
        x, y = (torch.tensor(one, dtype=SINGLE) for one in coarse_data())
        model = Regression(x, y).set(lengthscale=0.3, outputscale=1.0, noise=1e-4)
        with recorded() as caught:
            fit(model, model.likelihood, x, y, **{"subset_start": False, **WAYS[way]})
        assert len(caught) <= 1
        if way != "frozen draws":  # in float64 from the start
            assert len(caught) == 1
            assert "computed in float64 from here on" in str(caught[0].message)

    def test_cholesky_that_takes_over_does_not_say_it_again(self) -> None:
        x, y = (torch.tensor(one, dtype=SINGLE) for one in coarse_data(60))
        model = Regression(x, y).set(lengthscale=0.3, outputscale=1.0, noise=2e-6)
        model.train(), model.likelihood.train()
        problem = Problem(model, model.likelihood, x, y, rtgp.RRCG(), 0)
        with recorded() as caught:
            problem.evaluate()
            problem.take_cholesky("a test")
            problem.evaluate()
        assert problem.mll.last is not None
        assert problem.mll.last.method == "cholesky"
        assert problem.mll.last.dtype is DOUBLE
        assert len(caught) == 1

    def test_a_trial_says_nothing(self) -> None:
        x, y = (torch.tensor(one, dtype=SINGLE) for one in coarse_data(60))
        model = Regression(x, y).set(lengthscale=0.3, outputscale=1.0, noise=2e-6)
        model.train(), model.likelihood.train()
        problem = Problem(model, model.likelihood, x, y, rtgp.RRCG(), 0)
        with recorded() as caught:
            assert problem.objective_at(problem.snapshot(), 1) is not None
        assert not caught
        with pytest.warns(PrecisionWarning):
            problem.evaluate()

    def test_what_the_user_hears_decides_nothing(self) -> None:
        """Warnings that are errors, are ignored or are shown: the same training, but for the error."""
        ends = []
        for action in ("ignore", "always"):
            x, y = (torch.tensor(one, dtype=SINGLE) for one in coarse_data(100))
            model = Regression(x, y).set(lengthscale=0.3, outputscale=1.0, noise=1e-4)
            with warnings.catch_warnings(record=True):
                warnings.simplefilter(action)  # type: ignore[arg-type]
                result = fit(model, model.likelihood, x, y, **WAYS["rr-cg"], subset_start=False)
            ends.append((result.dtype, result.loss, model.covar_module.outputscale.item()))
        assert ends[0] == ends[1]
        assert ends[0][0] == "float64"


class TestTheEstimator:
    def test_it_goes_on_where_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many evaluations as steps, and the last four of the loss at the end: the first in float32, from one of
        them on in float64. Predictions are in float64 too."""
        dtypes: list[torch.dtype] = []
        evaluate = rtgp.MarginalLogLikelihood.evaluate

        def noted(self, *given, **wanted):  # type: ignore[no-untyped-def]
            found = evaluate(self, *given, **wanted)
            if not wanted.get("once") and not self.method.exact:  # not those of a start, nor the standard errors
                dtypes.append(self.last.dtype)
            return found

        monkeypatch.setattr(rtgp.MarginalLogLikelihood, "evaluate", noted)
        X, y = coarse_data(150)  # too few for a start on a subset, which would end where float32 fails
        with recorded() as caught:
            gp = GPRegressor(method=rtgp.RRCG(), steps=80, learning_rate=0.3, random_state=0).fit(X, y)
        history = gp.history_
        assert len(caught) == 1
        assert list(history.column("step")) == list(range(len(history)))
        assert len(dtypes) == len(history) + 4
        change = dtypes.index(DOUBLE)
        assert 0 < change < len(history)
        assert dtypes == [SINGLE] * change + [DOUBLE] * (len(dtypes) - change)
        assert (gp.dtype_, gp.fit_result_.dtype) == ("float64", "float64")
        gp.predict(X[:5], return_std=True)
        assert gp._posterior().report.dtype is DOUBLE

    def test_svgp_goes_on_where_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step that fails is taken in float64, and what Adam has gathered goes on."""
        steps: list[tuple[torch.dtype, bool]] = []
        step, failing = _Descent.step, 7

        def fails(self, rate, x, y, index):  # type: ignore[no-untyped-def]
            if x.dtype is SINGLE and len(steps) == failing:
                raise NotPositiveDefiniteError("Not definite. Add noise.")
            steps.append((x.dtype, bool(self._optimizer.state)))
            return step(self, rate, x, y, index)

        monkeypatch.setattr(_Descent, "step", fails)
        X, y = coarse_data(60)
        y += 0.3 * np.random.default_rng(0).standard_normal(60)  # beside it the jitter of either precision is small
        method = rtgp.SVGP(inducing=10)
        with recorded() as caught:
            gp = GPRegressor(method=method, steps=20, random_state=0).fit(X, y)
        assert [str(one.message).split(". ")[0] for one in caught] == [
            "torch.float32 is too coarse for this system: Not definite"
        ]
        assert [dtype for dtype, _ in steps] == [SINGLE] * failing + [DOUBLE] * (20 - failing)
        assert [gathered for _, gathered in steps] == [False] + [True] * 19
        assert len(gp.history_) == 20
        assert gp.dtype_ == gp.fit_result_.dtype == "float64"
        assert gp.model_.inducing_points.dtype is DOUBLE
        assert np.isfinite(gp.predict(X, return_std=True)).all()
        monkeypatch.setattr(_Descent, "step", step)
        alone = GPRegressor(method=method, steps=20, random_state=0, dtype="float64").fit(X, y)
        assert gp.fit_result_.loss == pytest.approx(alone.fit_result_.loss, abs=1e-3)


def test_why_it_is_in_float64_can_be_asked() -> None:
    x, y = airports(60, dtype=SINGLE)
    model = make(x, y)
    harmless = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.RRCG(), torch.Generator().manual_seed(0))
    harmless(model(x), y)
    assert harmless.last is not None
    assert (harmless.last.dtype, harmless.last.dtype_reason) == (SINGLE, "")
    strict = Judged(precision=PrecisionSettings(rounding=0.0, felt=0.0))
    asked = rtgp.MarginalLogLikelihood(model.likelihood, model, strict, torch.Generator().manual_seed(0))
    with pytest.warns(PrecisionWarning):
        asked(model(x), y)
    asked(model(x), y)
    assert asked.last is not None
    assert asked.last.dtype is DOUBLE
    assert "rounding the kernel matrix amounts to" in asked.last.dtype_reason
