"""Lanczos variances: never too small, exact at full rank, and the report says how far they are off."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import LinearKernel

from gp_models import airports, make
from posterior.cases import N, case, each_relative, gpytorch_prediction
from rtgp.errors import SettingError
from rtgp.posterior import posterior


@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_overestimates_less_and_less_down_to_the_exact_variance(method):
    model, x = case("rbf-ard")
    exact = gpytorch_prediction(model, x)[1]
    last = torch.full((x.shape[0],), float("inf"), dtype=torch.float64)
    for rank in (1, 5, 20, 60, N):
        found = posterior(model, model.likelihood, method=method, variance="lanczos", rank=rank)
        variance = found.variance(x)
        assert bool((variance >= exact.diagonal() * (1 - 1e-9)).all())
        assert bool((variance <= last * (1 + 1e-9)).all())
        assert found.report.variance == f"lanczos({rank})"
        last = variance
    assert each_relative(last, exact.diagonal()) < 1e-6
    assert found.report.variance_error < 1e-3
    assert each_relative(found.covariance(x).diagonal(), exact.diagonal()) < 1e-6


def test_the_report_says_when_the_rank_is_too_small():
    model, x = case("matern12")
    found = posterior(model, model.likelihood, variance="lanczos", rank=3)
    training = model.train_inputs[0]
    excess = found.variance(training) / posterior(model, model.likelihood).variance(training) - 1
    assert found.report.variance_error > 0.5
    assert 0.3 * float(excess.max()) < found.report.variance_error <= float(excess.max()) * (1 + 1e-9)
    assert x.shape[0] > 0


def test_repeated_eigenvalues():
    """A kernel of rank 2 leaves A with n - 2 eigenvalues of 1: the Krylov space ends after three steps."""
    x, y = airports(30)
    model = make(x, y, kernel=LinearKernel())
    found = posterior(model, model.likelihood, variance="lanczos", rank=30)
    assert each_relative(found.variance(x), gpytorch_prediction(model, x)[1].diagonal()) < 1e-4


def test_float32():
    model, x = case("rbf-ard", torch.float32)
    model.likelihood.noise = 0.2
    found = posterior(model, model.likelihood, variance="lanczos", rank=N)
    assert found.report.dtype == torch.float32
    assert each_relative(found.variance(x), gpytorch_prediction(model, x)[1].diagonal()) < 1e-3


def test_rank_belongs_to_lanczos():
    model, _ = case("rbf-ard")
    with pytest.raises(SettingError, match="variance='lanczos'"):
        posterior(model, model.likelihood, rank=10)
