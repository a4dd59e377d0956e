"""What "auto" takes says why: method, optimiser and start."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import rtgp
from gp_models import airports, make
from rtgp._methods import Method
from rtgp.errors import SettingError
from rtgp.training._choose import MethodSettings, choose_method, choose_optimizer, choose_start
from rtgp.training._newton import NewtonSettings
from rtgp.training._problem import Problem
from rtgp.training._settings import TrainingSettings
from rtgp.training._start import StartSettings


def problem(method: Method) -> Problem:
    X, y = airports(40)
    model = make(X, y)
    return Problem(model.train(), model.likelihood.train(), X, y, method, 0)


class TestMethod:
    def test_by_size(self) -> None:
        small, large = choose_method(3000, 5), choose_method(3001, 5)
        assert isinstance(small.method, rtgp.Cholesky)
        assert isinstance(large.method, rtgp.RRCG)
        assert small.reason.startswith("n = 3000 is at most 3000")
        assert large.reason.startswith("n = 3001 is above 3000")

    def test_many_inputs_favour_cholesky(self) -> None:
        assert isinstance(choose_method(6000, 400).method, rtgp.Cholesky)

    def test_a_setting(self) -> None:
        assert isinstance(choose_method(100, 5, "cpu", MethodSettings({"cpu": 50, "cuda": 50})).method, rtgp.RRCG)


class TestOptimizer:
    @pytest.mark.parametrize(
        "method, rate, name, reason",
        [
            (rtgp.Cholesky(), None, "lbfgs", "exact"),
            (rtgp.RRCG(), None, "average-information", "noisy"),
            (rtgp.RRCG(), 0.1, "adam", "learning rate"),
            (rtgp.RFF(), None, "adam", "RFF does not estimate"),
        ],
        ids=str,
    )
    def test_by_method(self, method: Method, rate: float | None, name: str, reason: str) -> None:
        choice = choose_optimizer(problem(method), rate)
        assert choice.name == name
        assert reason in choice.reason

    def test_many_parameters(self) -> None:
        choice = choose_optimizer(problem(rtgp.RRCG()), None, NewtonSettings(most_parameters=3))
        assert choice.name == "adam"
        assert "are more than 3" in choice.reason


class TestStart:
    @pytest.mark.parametrize(
        "asked, method, n, parameters, size, neighbours, reason",
        [
            ("auto", rtgp.RRCG(), 5000, 10, 1000, True, "5000 points"),
            ("auto", rtgp.RRCG(), 600, 10, 300, True, "600 points"),
            ("auto", rtgp.RRCG(), 199, 10, 0, False, "from 200 points on"),
            ("auto", rtgp.RRCG(), 600, 61, 0, False, "61 are too many for a start from 300 points"),
            ("auto", rtgp.Cholesky(), 5000, 10, 0, False, "the given hyperparameters"),
            (True, rtgp.Cholesky(), 5000, 10, 1000, False, "asked for"),
            (False, rtgp.RRCG(), 5000, 10, 0, False, "the given hyperparameters"),
            (70, rtgp.RRCG(), 50, 10, 50, False, "asked for"),
        ],
        ids=str,
    )
    def test_by_size(self, asked, method, n, parameters, size, neighbours, reason) -> None:
        choice = choose_start(asked, method, n, parameters)
        assert (choice.size, choice.neighbours) == (size, neighbours)
        assert reason in choice.reason

    @pytest.mark.parametrize("asked", ["some", 1, 2.5, None])
    def test_bad_settings(self, asked: object) -> None:
        with pytest.raises(SettingError, match="subset_start"):
            choose_start(asked, rtgp.RRCG(), 100, 3)

    def test_a_setting(self) -> None:
        assert choose_start("auto", rtgp.RRCG(), 5000, 10, StartSettings(subset=70)).size == 70


def test_settings_are_values() -> None:
    """Frozen, and equal to those made alike: a checkpoint tells others apart."""
    one, two = TrainingSettings(), TrainingSettings()
    assert one == two
    assert dataclasses.replace(one, start=StartSettings(subset=70)) != two
    for part in (one, *(getattr(one, field.name) for field in dataclasses.fields(one))):
        name = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, 0)


def test_a_setting_reaches_the_start() -> None:
    X, y = airports(240, dtype=torch.float64)
    model = make(X, y)
    own = TrainingSettings(start=StartSettings(subset=60))
    result = rtgp.fit(model, model.likelihood, X, y, "rr-cg", steps=1, _settings=own)
    assert "60" in result.start
