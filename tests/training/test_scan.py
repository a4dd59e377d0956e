"""A first fit looks elsewhere: short waves are found, and nothing changes where there are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import rtgp
from rtgp._estimator.model import new_model
from rtgp._methods import Cholesky
from rtgp.errors import ConvergenceError
from rtgp.training._neighbour_start import NeighbourStart, Stage, fit_by_neighbours
from rtgp.training._problem import Problem
from rtgp.training._scan import ScanSettings
from rtgp.training._start import FirstFit, StartSettings, fit_on_subset

BLIND = replace(StartSettings(), scan=ScanSettings(looks=0))


def waves(n: int = 240) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth in the first input; twelve periods in the second."""
    generator = np.random.default_rng(1)
    X = generator.random((n, 2))
    y = np.sin(3.0 * X[:, 0]) + np.sin(2.0 * np.pi * 12.0 * X[:, 1]) + 0.1 * generator.normal(size=n)
    return _standard(X, y)


def smooth(n: int = 240) -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(2)
    X = generator.normal(size=(n, 2))
    return _standard(X, np.sin(X[:, 0]) + X[:, 1] + 0.3 * generator.normal(size=n))


def _standard(X: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy((X - X.mean(0)) / X.std(0)), torch.from_numpy((y - y.mean()) / y.std())


def problem(data: tuple[torch.Tensor, torch.Tensor], method: Any = None) -> Problem:
    model = new_model(*data, "rbf", None).train()
    model.likelihood.train()
    return Problem(model, model.likelihood, *data, Cholesky() if method is None else method, 0)


def test_a_fit_finds_short_waves_in_one_input() -> None:
    blind, seeing = problem(waves()), problem(waves())
    short = fit_on_subset(blind, 240, 0, BLIND)
    found = fit_on_subset(seeing, 240, 0)
    assert isinstance(short, FirstFit)
    assert isinstance(found, FirstFit)
    assert short.place == ""
    assert found.place.startswith("lengthscale 2 times")
    assert found.objective < short.objective - 0.5
    assert seeing.hyperparameters()["lengthscale[1]"] < 0.3 < blind.hyperparameters()["lengthscale[1]"]


@pytest.mark.parametrize("method", ["cholesky", "rr-cg"])
def test_training_ends_there(method: str) -> None:
    data = waves()
    model = new_model(*data, "rbf", None)
    result = rtgp.fit(model, model.likelihood, *data, method=method)
    other = new_model(*data, "rbf", None)
    blind = rtgp.fit(other, other.likelihood, *data, method="cholesky", subset_start=False)
    assert "from lengthscale 2 times" in result.start
    assert result.loss < blind.loss - 0.5


def test_cholesky_begins_where_it_is_told_to_on_smooth_data() -> None:
    data = smooth()
    models = [new_model(*data, "rbf", None) for _ in range(2)]
    results = [
        rtgp.fit(model, model.likelihood, *data, method="cholesky", subset_start=start)
        for model, start in zip(models, ("auto", False), strict=True)
    ]
    assert results[0].start == results[1].start == "the given hyperparameters"
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_neighbours_are_found_again_for_other_lengthscales() -> None:
    """In the metric of the start the second input counts as much as the first, and the wave is not seen."""
    stages = (Stage(8, 600, 600, 40, 1e-6),)
    blind, seeing = problem(waves(600)), problem(waves(600))
    short = fit_by_neighbours(blind, 0, NeighbourStart(stages, scan=None))
    found = fit_by_neighbours(seeing, 0, NeighbourStart(stages))
    assert isinstance(short, FirstFit)
    assert isinstance(found, FirstFit)
    assert found.place.startswith("lengthscale 2 times")
    ends = [one.objective_at(one.snapshot(), 0) for one in (blind, seeing)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[1] < ends[0] - 0.5


def test_no_lengthscale_no_look() -> None:
    data = smooth()
    one = problem(data)
    for name, parameter in one.model.named_parameters():
        parameter.requires_grad_("lengthscale" not in name)
    one = Problem(one.model, one.likelihood, *data, Cholesky(), 0)
    found, blind = fit_on_subset(one, 240, 0), problem(data)
    assert isinstance(found, FirstFit)
    assert found.place == ""
    assert blind.logarithms_of("lengthscale")
    assert not one.logarithms_of("lengthscale")


def test_most_bounds_the_evaluations() -> None:
    one = problem(smooth())
    whole = fit_on_subset(one, 240, 0)
    few = fit_on_subset(problem(smooth()), 240, 0, replace(StartSettings(), scan=ScanSettings(most=3)))
    none = fit_on_subset(problem(smooth()), 240, 0, BLIND)
    assert isinstance(whole, FirstFit)
    assert isinstance(few, FirstFit)
    assert isinstance(none, FirstFit)
    assert (few.evaluations - none.evaluations, whole.evaluations - none.evaluations) == (3, 12)


def test_a_candidate_that_conjugate_gradients_cannot_judge_is_judged_by_cholesky(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = smooth()
    iterative, exact = problem(data, rtgp.RRCG()), problem(data)
    values, expected = iterative.snapshot(), exact.objective_at(exact.snapshot(), 0)
    plain = Problem._objective_by

    def without_headway(self: Problem, method: Any, seed: int) -> float | None:
        if not method.exact:
            raise ConvergenceError("no headway")
        return plain(self, method, seed)

    monkeypatch.setattr(Problem, "_objective_by", without_headway)
    assert iterative.objective_at(values, 0) == pytest.approx(expected, abs=1e-10)
    assert problem(data, rtgp.CG(10)).objective_at(values, 0) is None  # its bias is what is asked for
