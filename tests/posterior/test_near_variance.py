"""Variances of very many points from neighbours: never too small, checked at a sample, exact where that is needed."""

from __future__ import annotations

import pytest
import torch

from posterior.cases import case
from rtgp.posterior import posterior
from rtgp.posterior._near_variance import NearVarianceSettings
from rtgp.posterior._settings import PredictionSettings

EAGER = {"work": 0.0, "sample": 8}  # as if there were very many points


def settings(**values: object) -> PredictionSettings:
    return PredictionSettings(near=NearVarianceSettings(**{**EAGER, **values}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["matern12", "rbf-ard", "sum", "product", "fixed-noise"])
def test_they_are_near_the_exact_ones_and_never_below(name: str) -> None:
    model, x = case(name)
    exact = posterior(model, model.likelihood, method="cg", variance="exact", tolerance=1e-8).variance(x)
    found = posterior(model, model.likelihood, method="cg", _settings=settings(counts=(8, 64)))
    variance = found.variance(x)
    assert float((variance - exact).min()) >= -1e-7 * float(exact.max())
    assert found.report.variance in ("neighbours(8)", "neighbours(64)")
    excess = (variance / exact - 1.0).square().mean().sqrt()
    assert float(excess) <= 0.1  # 0.02 at the sample
    assert found.report.variance_error >= 0.0
    assert float((variance / exact - 1.0).max()) > 0.0  # they are not the exact ones


def test_more_neighbours_are_taken_where_few_do_not_serve() -> None:
    model, x = case("rbf-ard")
    few = posterior(model, model.likelihood, method="cg", _settings=settings(counts=(1, 64)))
    few.variance(x)
    assert few.report.variance == "neighbours(64)"


def test_where_none_serves_they_are_exact() -> None:
    model, x = case("rbf-ard")
    exact = posterior(model, model.likelihood, method="cg", variance="exact").variance(x)
    found = posterior(model, model.likelihood, method="cg", _settings=settings(counts=(1,)))
    assert torch.equal(found.variance(x), exact)
    assert found.report.variance == "exact"


def test_what_is_asked_for_exactly_or_is_little_work_is_exact() -> None:
    model, x = case("rbf-ard")
    asked = posterior(model, model.likelihood, method="cg", variance="exact", _settings=settings())
    asked.variance(x)
    little = posterior(model, model.likelihood, method="cg")
    little.variance(x)
    assert asked.report.variance == little.report.variance == "exact"


def test_kernels_without_cheap_neighbours_stay_exact() -> None:
    model, x = case("generic")
    found = posterior(model, model.likelihood, method="cg", _settings=settings())
    found.variance(x)
    assert found.report.variance == "exact"


def test_the_same_sample_twice() -> None:
    model, x = case("matern12")
    first, second = (posterior(model, model.likelihood, method="cg", _settings=settings()) for _ in range(2))
    assert torch.equal(first.variance(x), second.variance(x))
    assert first.report.variance_error == second.report.variance_error


@pytest.mark.parametrize(
    "m, n, iterations, pays", [(100, 10**4, 5, False), (10**5, 10**5, 5, True), (10, 10**6, 50, False)]
)
def test_when_they_pay(m: int, n: int, iterations: int, pays: bool) -> None:
    assert NearVarianceSettings().pays(m, n, iterations, torch.device("cpu")) is pays
