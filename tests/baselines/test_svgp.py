"""SVGP's model: its predictions against GPyTorch's own, its bound and its best distribution against the exact GP."""

from __future__ import annotations

import copy
import math

import gpytorch
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO

import rtgp
from gp_models import airports, make
from rtgp._baselines import VariationalModel
from rtgp._baselines.svgp import posterior as variational
from rtgp._baselines.svgp.training import lower_bound, minibatches, set_best_distribution
from rtgp.errors import InputError, SettingError

N, M = 80, 20
JITTER = 1e-6


def model_of(inducing: torch.Tensor, dtype: torch.dtype = torch.float64, jitter: float = JITTER) -> VariationalModel:
    """Away from any optimum: m and R are random."""
    kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2))
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-6))
    model = VariationalModel(inducing.to(dtype), likelihood, ConstantMean(), kernel, jitter).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.likelihood.noise, model.mean_module.constant = 0.2, 0.3
        kernel.base_kernel.lengthscale = torch.tensor([[0.7, 1.3]])
        distribution = model.variational_strategy._variational_distribution
        distribution.variational_mean.copy_(torch.randn(len(inducing), generator=generator))
        noise = 0.1 * torch.randn(len(inducing), len(inducing), generator=generator)
        distribution.chol_variational_covar.copy_(0.5 * torch.eye(len(inducing)) + noise)
    return model


def exact_of(model: VariationalModel, x: torch.Tensor, y: torch.Tensor) -> gpytorch.models.ExactGP:
    exact = make(x, y, kernel=copy.deepcopy(model.covar_module), likelihood=copy.deepcopy(model.likelihood))
    exact.mean_module.load_state_dict(model.mean_module.state_dict())
    exact.kernel.load_state_dict(model.covar_module.state_dict())
    exact.likelihood.load_state_dict(model.likelihood.state_dict())
    return exact


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_predictions_are_gpytorchs(dtype: torch.dtype) -> None:
    x, _ = airports(N + 30)
    model = model_of(x[:M], dtype)
    new = x[N:].to(dtype)
    wide = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        expected = wide(x[N:])
    at = rtgp.posterior(model, model.likelihood)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(at.mean(new).double(), expected.mean, **close)
    # GPyTorch adds its jitter to the variance of the function, too.
    torch.testing.assert_close(at.variance(new).double(), expected.variance - JITTER, **close)
    joint = expected.covariance_matrix - JITTER * torch.eye(30, dtype=torch.float64)
    torch.testing.assert_close(at.covariance(new).double(), joint, **close)
    torch.testing.assert_close(at.variance(new, include_noise=True), at.variance(new) + 0.2, **close)
    assert at.mean(new).dtype == dtype
    assert model.training  # left as it was


def test_it_follows_its_model_and_is_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = airports(N)
    model = model_of(x[:M])
    at = rtgp.posterior(model, model.likelihood)
    before = at.mean(x), at.variance(x)
    monkeypatch.setattr(variational, "_BYTES", 8 * M * 7)  # 7 points at a time
    torch.testing.assert_close(at.mean(x), before[0])
    torch.testing.assert_close(at.variance(x), before[1])
    model.covar_module.outputscale = 3.0
    assert not torch.allclose(at.variance(x), before[1])


def test_samples_have_the_moments() -> None:
    x, _ = airports(N)
    model = model_of(x[:M])
    at = rtgp.posterior(model, model.likelihood)
    drawn = at.sample(x[:4], 4000, generator=torch.Generator().manual_seed(0))
    sd = at.variance(x[:4]).sqrt()
    # Five standard errors: a false alarm in a million.
    assert float(((drawn.mean(0) - at.mean(x[:4])) / sd).abs().max()) < 5.0 / math.sqrt(4000)
    error = (torch.cov(drawn.T) - at.covariance(x[:4])).abs() / (sd * sd[:, None])
    assert float(error.max()) < 5.0 * math.sqrt(2.0 / 4000)


def test_bad_input() -> None:
    x, _ = airports(N)
    model = model_of(x[:M])
    at = rtgp.posterior(model, model.likelihood)
    with pytest.raises(InputError, match=r"shape \(m, 2\)"):
        at.mean(x[:, :1])
    with pytest.raises(InputError, match="finite inputs"):
        at.variance(torch.full((3, 2), math.nan))
    with pytest.raises(SettingError, match="'n' parameter of sample"):
        at.sample(x, 0)
    with pytest.raises(InputError, match="joint covariance"):
        at.covariance(torch.zeros(100_000, 2))


def test_the_bound_is_gpytorchs() -> None:
    x, y = airports(N)
    model = model_of(x[:M])
    with torch.no_grad():
        expected = N * float(VariationalELBO(model.likelihood, model, N)(model(x), y))
    # The jitter in GPyTorch's variances: N / 2 / noise of it.
    assert lower_bound(model, x, y) == pytest.approx(expected + N * JITTER / 2 / 0.2, rel=1e-8)


def test_the_best_distribution_is_a_maximum_of_the_bound() -> None:
    x, y = airports(N)
    model = model_of(x[:M])
    set_best_distribution(model, x, y)
    model.train()
    (-VariationalELBO(model.likelihood, model, N)(model(x), y)).backward()
    distribution = model.variational_strategy._variational_distribution
    assert float(distribution.variational_mean.grad.abs().max()) < 1e-9
    assert float(distribution.chol_variational_covar.grad.tril().abs().max()) < 1e-9
    best = lower_bound(model, x, y)
    exact = exact_of(model, x, y)
    value = N * float(rtgp.MarginalLogLikelihood(exact.likelihood, exact, "cholesky")(exact(x), y).detach())
    assert best < value
    with torch.no_grad():
        distribution.variational_mean += 0.01
    assert lower_bound(model, x, y) < best


def test_with_all_points_inducing_it_is_the_exact_gp() -> None:
    x, y = airports(N + 20)
    new, x, y = x[N:], x[:N], y[:N]
    model = model_of(x.clone(), jitter=1e-10)
    set_best_distribution(model, x, y)
    exact = exact_of(model, x, y)
    value = N * float(rtgp.MarginalLogLikelihood(exact.likelihood, exact, "cholesky")(exact(x), y).detach())
    assert lower_bound(model, x, y) == pytest.approx(value, abs=1e-5)
    found, expected = rtgp.posterior(model, model.likelihood), rtgp.posterior(exact, exact.likelihood)
    torch.testing.assert_close(found.mean(new), expected.mean(new), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.covariance(new), expected.covariance(new), rtol=1e-6, atol=1e-7)


def test_minibatches_go_through_all_points_in_turn() -> None:
    batches = minibatches(10, 4, torch.Generator().manual_seed(0))
    drawn = torch.cat([next(batches) for _ in range(5)])
    assert sorted(drawn[:10].tolist()) == sorted(drawn[10:].tolist()) == list(range(10))
    assert drawn[:10].tolist() != drawn[10:].tolist()
