"""Mean, variance and covariance agree with GPyTorch's exact prediction, and with NumPy's."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood

from gp_models import airports, make
from posterior.cases import CASES, case, each_relative, gpytorch_prediction, relative
from reference import kernel_matrix
from rtgp._precision import Precision
from rtgp._preconditioners.choose import ChoiceSettings
from rtgp._preconditioners.policy_settings import PolicySettings
from rtgp.errors import ConvergenceError
from rtgp.posterior import _cache as cache
from rtgp.posterior import _conjugate_gradients as krylov
from rtgp.posterior import _predict as predict
from rtgp.posterior import _prior as prior
from rtgp.posterior import posterior
from rtgp.posterior._conjugate_gradients import SolveSettings
from rtgp.posterior._settings import PredictionSettings

METHODS = ["cholesky", "cg"]
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", list(CASES))
def test_agrees_with_gpytorch(name, method, dtype):
    model, x = case(name, dtype)
    expected, covariance = gpytorch_prediction(model, x)
    found = posterior(model, model.likelihood, method=method)
    mean, variance, joint = found.mean(x), found.variance(x), found.covariance(x)
    assert mean.dtype == variance.dtype == joint.dtype == dtype
    assert relative(mean, expected) < TOLERANCE[dtype]
    assert each_relative(variance, covariance.diagonal()) < TOLERANCE[dtype]
    assert relative(joint, covariance) < TOLERANCE[dtype]
    assert each_relative(joint.diagonal(), variance) < TOLERANCE[dtype]
    assert torch.equal(joint, joint.T)
    # Rounding is relative to the prior variances, which are of order one.
    assert float(torch.linalg.eigvalsh(joint.double()).min()) > -100 * torch.finfo(dtype).eps
    assert found.report.method == method
    assert found.report.residual <= found.report.tolerance


@pytest.mark.parametrize("method", METHODS)
def test_agrees_with_gpytorch_in_its_own_float32(method):
    x, y = airports(160, dtype=torch.float32)
    model = make(x[:120], y[:120])
    model.likelihood.noise = 0.1
    found = posterior(model, model.likelihood, method=method)
    assert found.report.dtype == torch.float32
    model.eval()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        expected = model(x[120:])
        assert relative(found.mean(x[120:]), expected.mean) < 1e-3
        assert each_relative(found.variance(x[120:]), expected.variance) < 1e-3


@pytest.mark.parametrize("noise", [0.2, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("lengthscale", [0.1, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_float32_at_every_noise(method, lengthscale, noise):
    """Small variances, as differences of large numbers, are where float32 would fail first."""
    x, y = airports(250, dtype=torch.float32)
    likelihood = GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-8))
    model = make(x[:200], y[:200], kernel=ScaleKernel(RBFKernel()), likelihood=likelihood)
    model.kernel.outputscale, model.kernel.base_kernel.lengthscale, likelihood.noise = 1.0, lengthscale, noise
    expected, covariance = gpytorch_prediction(model, x)
    found = posterior(model, likelihood, method=method)
    assert relative(found.mean(x), expected) < 1e-3
    assert each_relative(found.variance(x), covariance.diagonal()) < 1e-3
    # Where lengthscales are short, little of the rounding reaches a solve.
    serves = noise >= 1e-2 or (method, lengthscale, noise) == ("cg", 0.1, 1e-3)
    assert found.report.dtype == (torch.float32 if serves else torch.float64)


def test_without_the_switch_to_float64_that_test_fails(monkeypatch):
    monkeypatch.setattr(cache, "decide_prediction", lambda limits, felt: Precision(limits.dtype))
    x, y = airports(250, dtype=torch.float32)
    likelihood = GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-8))
    model = make(x[:200], y[:200], kernel=ScaleKernel(RBFKernel()), likelihood=likelihood)
    model.kernel.outputscale, model.kernel.base_kernel.lengthscale, likelihood.noise = 1.0, 1.0, 1e-4
    covariance = gpytorch_prediction(model, x)[1]
    found = posterior(model, likelihood, method="cholesky")
    assert found.report.dtype == torch.float32
    assert each_relative(found.variance(x), covariance.diagonal()) > 1e-2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["rbf", "matern32"])
def test_agrees_with_numpy(kind, method):
    x, y = airports(130)
    noise = torch.linspace(0.02, 0.2, 100, dtype=torch.float64)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2) if kind == "rbf" else MaternKernel(nu=1.5, ard_num_dims=2))
    model = make(x[:100], y[:100], kernel=kernel, likelihood=FixedNoiseGaussianLikelihood(noise))
    lengthscales = kernel.base_kernel.lengthscale.detach().numpy()[0]
    scale, constant = kernel.outputscale.item(), model.mean_module.constant.item()

    def k(a, b):
        return kernel_matrix(kind, a.numpy(), b.numpy(), lengthscales, scale)

    inverse = np.linalg.inv(k(x[:100], x[:100]) + np.diag(noise.numpy()))
    cross = k(x[100:], x[:100])
    expected = constant + cross @ inverse @ (y[:100].numpy() - constant)
    covariance = k(x[100:], x[100:]) - cross @ inverse @ cross.T

    found = posterior(model, model.likelihood, method=method)
    assert relative(found.mean(x[100:]), torch.tensor(expected)) < 1e-4
    assert each_relative(found.variance(x[100:]), torch.tensor(np.diag(covariance))) < 1e-4
    assert relative(found.covariance(x[100:]), torch.tensor(covariance)) < 1e-4


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-7])
def test_the_bound_of_the_variance_error_holds(tolerance):
    """CG variances are never below the exact ones, and above by less than the reported bound."""
    model, x = case("matern12")
    exact = posterior(model, model.likelihood, method="cholesky").variance(x)
    found = posterior(model, model.likelihood, method="cg", tolerance=tolerance)
    excess = found.variance(x) / exact - 1
    bound = found.report.variance_error
    assert float(excess.min()) > -1e-10
    assert float(excess.max()) <= bound + 1e-10
    assert bound <= tolerance * (1 + 1e-6)
    assert found.report.residual <= tolerance


def test_many_columns_are_solved_in_pieces(monkeypatch):
    """The result does not depend on how the test points are cut."""
    model, x = case("deep")
    found = posterior(model, model.likelihood, method="cg", tolerance=1e-8)
    whole = found.mean(x), found.variance(x), found.covariance(x)
    monkeypatch.setattr(prior, "_SLAB_POINTS", 11)
    for module in (predict, krylov):
        monkeypatch.setattr(module, "columns_within", lambda n: 3)
    pieces = found.mean(x), found.variance(x), found.covariance(x)
    for a, b in zip(whole, pieces, strict=True):
        assert relative(b, a) < 1e-7


def test_a_tolerance_that_cannot_be_reached_is_an_error():
    model, _ = case("matern12")
    with pytest.raises(ConvergenceError, match="method='cholesky'"):
        posterior(model, model.likelihood, method="cg", tolerance=1e-100)
    weak = PolicySettings(most_bytes=1, choice=ChoiceSettings(counts=(1,)))  # of rank 1, or one neighbour
    short = PredictionSettings(solve=SolveSettings(most_iterations=2, policy=weak))
    with pytest.raises(ConvergenceError, match="in 2 iterations"):
        posterior(model, model.likelihood, method="cg", tolerance=1e-10, _settings=short)
