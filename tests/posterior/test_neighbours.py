"""Predictions from the nearest training points: exact with all of them, textbook formulas with fewer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch import kernels
from gpytorch.constraints import Positive
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

import rtgp
from gp_models import airports, make
from rtgp.errors import SettingError, UnsupportedModelError

N, NEW = 60, 15


def case(known: bool = False, dtype: torch.dtype = torch.float64, **parts):
    x, y = airports(N + NEW, dtype=dtype)
    noise = torch.linspace(0.05, 0.3, N, dtype=dtype)
    model = make(x[:N], y[:N], likelihood=FixedNoiseGaussianLikelihood(noise) if known else None, **parts).eval()
    return model, x[N:]


@pytest.mark.parametrize("count", [N, N + 10])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kernel", [None, lambda: kernels.ScaleKernel(kernels.PeriodicKernel())])
def test_all_training_points_give_the_exact_posterior(kernel, known: bool, count: int) -> None:
    model, new = case(known, kernel=None if kernel is None else kernel())
    wanted = rtgp.posterior(model, model.likelihood)
    found = rtgp.posterior(model, model.likelihood, neighbours=count)
    torch.testing.assert_close(found.mean(new), wanted.mean(new), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance(new), wanted.variance(new), rtol=1e-8, atol=1e-8)
    if not known:
        noisy = found.variance(new, include_noise=True)
        torch.testing.assert_close(noisy, wanted.variance(new, include_noise=True), rtol=1e-8, atol=1e-8)


def test_few_neighbours_by_the_formula() -> None:
    model, new = case()
    found = rtgp.posterior(model, model.likelihood, neighbours=7)
    x, y = model.train_inputs[0], model.train_targets
    with torch.no_grad():
        lengthscale = model.kernel.base_kernel.lengthscale
        K = model.kernel(torch.cat([x, new])).to_dense().numpy()
        noise, mean = float(model.likelihood.noise), float(model.mean_module.constant)
    near = torch.cdist(new / lengthscale.detach(), x / lengthscale.detach()).topk(7, largest=False).indices.numpy()
    for i, c in enumerate(near):
        weights = np.linalg.solve(K[np.ix_(c, c)] + noise * np.eye(7), K[c, N + i])
        assert float(found.mean(new)[i]) == pytest.approx(mean + weights @ (y.numpy()[c] - mean), rel=1e-9)
        assert float(found.variance(new)[i]) == pytest.approx(K[N + i, N + i] - weights @ K[c, N + i], rel=1e-9)
    exact = rtgp.posterior(model, model.likelihood).variance(new)
    assert bool((found.variance(new) >= exact - 1e-10).all())


def test_a_float32_model_is_predicted_from_in_float64() -> None:
    narrow, new = case(dtype=torch.float32)
    found = rtgp.posterior(narrow, narrow.likelihood, neighbours=9)
    mean, variance = found.mean(new), found.variance(new)
    assert mean.dtype == torch.float32
    wide = narrow.double()
    wanted = rtgp.posterior(wide, wide.likelihood, neighbours=9)
    torch.testing.assert_close(mean, wanted.mean(new.double()).float())
    torch.testing.assert_close(variance, wanted.variance(new.double()).float())


def test_equal_points_in_hardly_any_noise() -> None:
    model, new = case()
    x, y = model.train_inputs[0].clone(), model.train_targets
    x[10:40] = x[0]
    model.set_train_data(x, y, strict=False)
    model.likelihood.noise_covar.register_constraint("raw_noise", Positive())
    model.likelihood.noise = 1e-14
    found = rtgp.posterior(model, model.likelihood, neighbours=20)
    assert bool(torch.isfinite(found.mean(new)).all())
    assert bool((found.variance(torch.cat([new, x[:1]])) >= 0).all())


def test_no_point_and_no_joint_covariance() -> None:
    model, new = case()
    found = rtgp.posterior(model, model.likelihood, neighbours=5)
    with pytest.raises(UnsupportedModelError, match="no joint covariance"):
        found.covariance(new)
    with pytest.raises(UnsupportedModelError, match="no joint covariance"):
        found.sample(new, 2)
    for wrong in (0, True, 2.0):
        with pytest.raises(SettingError, match="'neighbours' parameter of posterior"):
            rtgp.posterior(model, model.likelihood, neighbours=wrong)
