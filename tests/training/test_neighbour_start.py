"""The start by the likelihood of neighbours: near the optimum where that serves, and never taken where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpytorch import kernels
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

import rtgp
from gp_models import airports, make
from rtgp.errors import RTGPError
from rtgp.training import _choose_start as begin_module
from rtgp.training import _neighbour_start as neighbour_start
from rtgp.training._choose_start import begin
from rtgp.training._neighbour_start import (
    DEFAULT,
    NeighbourStart,
    Stage,
    fit_by_neighbours,
    pays,
    start_from_neighbours,
)
from rtgp.training._problem import Problem
from rtgp.training._start import FirstFit

SMALL = NeighbourStart((Stage(6, 100, 100, 40, 1e-6), Stage(12, 250, 250, 20, 1e-6)), least=150)


def problem(n: int = 300, method: object = None, kernel: object = None) -> Problem:
    x, y = airports(n)
    model = make(x, y, kernel=kernels.ScaleKernel(kernels.MaternKernel(nu=0.5)) if kernel is None else kernel)
    return Problem(model, model.likelihood, x, y, rtgp.Cholesky() if method is None else method, 0)


def test_it_ends_near_the_optimum_of_all_points() -> None:
    one = problem()
    before = one.snapshot()
    assert isinstance(fit_by_neighbours(one, 0, SMALL), FirstFit)
    there = one.snapshot()
    rtgp.fit(one.model, one.likelihood, one.X, one.y, method="cholesky")
    one.model.train(), one.likelihood.train()
    one.pull()
    values = [one.objective_at(at, 0) for at in (one.snapshot(), there, before)]
    assert values[0] <= values[1] < values[0] + 0.02
    assert values[2] > values[1]


@pytest.mark.parametrize("agrees", [1.0, 0.0], ids=["believed", "beside a subset"])
def test_it_is_taken_where_the_objective_is_lower(agrees: float) -> None:
    one = problem(method=rtgp.RRCG())
    before = one.objective_at(one.snapshot(), 0)
    words = begin(one, 12, True, 0, neighbours=replace(SMALL, agrees=agrees, clear=torch.inf))
    assert words.startswith("hyperparameters fitted by 12 neighbours of each point (")
    assert "per point higher at the given hyperparameters" in words
    assert ("per point higher at hyperparameters fitted by Cholesky on 12 of 300" in words) == (agrees == 0.0)
    assert one.objective_at(one.snapshot(), 0) < before


@pytest.mark.parametrize("agrees, asked", [(1.0, 1), (0.0, 3)], ids=["believed", "not believed"])
def test_given_hyperparameters_that_are_clearly_worse_are_not_estimated(
    agrees: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, estimated = problem(method=rtgp.RRCG()), []
    found = fit_by_neighbours(one, 0, SMALL)
    assert isinstance(found, FirstFit)
    assert found.before is not None
    gained, original = found.before - found.objective, Problem.objective_at
    assert gained > 0.0

    def counted(self: Problem, values: list[torch.Tensor], seed: int) -> float | None:
        estimated.append(values)
        return original(self, values, seed)

    monkeypatch.setattr(Problem, "objective_at", counted)
    one = problem(method=rtgp.RRCG())
    words = begin(one, 12, True, 0, neighbours=replace(SMALL, agrees=agrees, clear=0.5 * gained))
    assert len(estimated) == asked
    assert ("by the likelihood of neighbours the given hyperparameters are" in words) == (asked == 1)


def test_it_is_not_taken_where_the_objective_is_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    one = problem(method=rtgp.RRCG())
    rtgp.fit(one.model, one.likelihood, one.X, one.y, method="cholesky")
    one.model.train(), one.likelihood.train()
    one.pull()
    best = one.snapshot()
    by_one = replace(SMALL, stages=tuple(replace(stage, count=1) for stage in SMALL.stages))
    words = begin(one, 100, True, 0, neighbours=by_one)
    assert words.startswith("the given hyperparameters; on all points the loss is")
    assert "per point higher at hyperparameters fitted by 1 neighbours of each point (" in words
    assert "per point higher at hyperparameters fitted by Cholesky on 100 of 300" in words
    assert all(torch.equal(a, b) for a, b in zip(best, one.snapshot(), strict=True))

    def fails(*_: object) -> None:
        raise RTGPError("no such luck")

    monkeypatch.setattr(neighbour_start, "minimise", fails)
    monkeypatch.setattr(begin_module, "fit_on_subset", lambda *_: "nor this")
    assert begin(one, 100, True, 0, neighbours=SMALL) == (
        "the given hyperparameters (a fit by 12 neighbours of each point failed: no such luck; "
        "a fit by Cholesky on 100 of 300 points, drawn with seed 0 failed: nor this)"
    )
    assert start_from_neighbours(one, 20, 0) == "the given hyperparameters (a first fit failed: no such luck)"
    assert all(torch.equal(a, b) for a, b in zip(best, one.snapshot(), strict=True))


def test_where_it_can_pay() -> None:
    few = replace(DEFAULT, least=100)
    assert pays(problem(method=rtgp.RRCG()), 150, few)
    assert pays(problem(method=rtgp.CG()), 150, few)
    assert not pays(problem(method=rtgp.RRCG()), 150)  # few points
    assert not pays(problem(method=rtgp.RRCG()), 300, few)  # the subset is all
    assert not pays(problem(), 150, few)  # Cholesky
    generic = kernels.ScaleKernel(kernels.PeriodicKernel())
    assert not pays(problem(method=rtgp.RRCG(), kernel=generic), 150, few)
    summed = kernels.ScaleKernel(kernels.RBFKernel()) + kernels.ScaleKernel(kernels.MaternKernel(nu=1.5))
    assert pays(problem(method=rtgp.RRCG(), kernel=summed), 150, few)


def test_known_noise() -> None:
    x, y = airports(200)

    likelihood = FixedNoiseGaussianLikelihood(torch.linspace(0.05, 0.3, 200, dtype=torch.float64))
    model = make(x, y, likelihood=likelihood)
    one = Problem(model, likelihood, x, y, rtgp.RRCG(), 0)
    before = one.objective_at(one.snapshot(), 0)
    begin(one, 50, True, 0, neighbours=SMALL)
    assert one.objective_at(one.snapshot(), 0) < before


def test_every_candidate_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one where the objective cannot be computed."""
    one, asked = problem(method=rtgp.RRCG()), []
    monkeypatch.setattr(Problem, "objective_at", lambda self, values, seed: asked.append(values))
    begin(one, 12, True, 0, neighbours=SMALL)
    assert len(asked) == 3
