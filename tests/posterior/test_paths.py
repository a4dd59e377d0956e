"""Samples that are functions: right moments, differentiable, the same for the same seed, and tied to their model.

False alarm: 1e-6 for each comparison, at most 1e-3 for a test with a new seed.
"""

from __future__ import annotations

import pytest
import torch
from gpytorch.constraints import GreaterThan

from posterior.cases import case, gpytorch_prediction
from posterior.test_sampling import LEVEL, largest_z
from rtgp.errors import InputError, RTGPError, SettingError, UnsupportedModelError
from rtgp.posterior import Posterior, PosteriorSettings, posterior

STATIONARY = ["rbf-ard", "matern12", "sum", "product", "deep", "linear-mean", "fixed-noise"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(found, x, draws=30, each=100, **settings):
    """Many paths, by new frequencies in every draw: their covariance is right in the mean over frequencies."""
    return torch.cat([found.paths(each, seeded(s), **settings)(x) for s in range(draws)])


@pytest.mark.parametrize("name, method", [(name, "cholesky") for name in STATIONARY] + [("sum", "cg"), ("deep", "cg")])
def test_moments(name, method):
    model, x = case(name)
    x = x[-12:]
    found = posterior(model, model.likelihood, method=method, tolerance=1e-6)
    assert largest_z(drawn(found, x), *gpytorch_prediction(model, x)) < LEVEL


def test_that_test_has_power():
    model, x = case("rbf-ard")
    x = x[-12:]
    samples = drawn(posterior(model, model.likelihood), x)
    mean, covariance = gpytorch_prediction(model, x)
    assert largest_z(samples * 1.1 - 0.1 * mean, mean, covariance) > LEVEL
    assert largest_z(samples, mean + 0.1 * covariance.diagonal().sqrt(), covariance) > LEVEL


@pytest.mark.parametrize("name", STATIONARY)
def test_gradients_agree_with_finite_differences(name):
    model, _ = case(name)
    paths = posterior(model, model.likelihood).paths(3, seeded(1), features=64)
    x = torch.randn(2, 3, 4, 2, generator=seeded(2), dtype=torch.float64).requires_grad_(True)
    step = 1e-6 if name == "matern12" else 1e-5  # its paths have Cauchy frequencies
    weights = torch.randn(3, 2, 3, 4, generator=seeded(3), dtype=torch.float64)
    for value, w in ((paths, weights), (paths.each, weights[0])):
        (found,) = torch.autograd.grad((value(x) * w).sum(), x)
        expected = torch.empty_like(x)
        for index in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
            move = torch.zeros_like(x)
            move[tuple(index)] = step
            above, below = value(x.detach() + move), value(x.detach() - move)
            expected[tuple(index)] = ((above - below) * w).sum() / (2 * step)
        assert float((found - expected).abs().max() / expected.abs().max()) < 1e-6
    assert all(parameter.grad is None for parameter in model.parameters())


def test_paths_are_functions():
    """Their values do not depend on what else is asked, nor on how often."""
    model, x = case("rbf-ard")
    paths = posterior(model, model.likelihood).paths(4, seeded(0))
    every = paths(x)
    assert every.shape == (4, len(x))
    assert torch.allclose(paths(x[7:9]), every[:, 7:9], atol=1e-12)
    assert torch.allclose(paths(x[:12].reshape(3, 4, 2)), every[:, :12].reshape(4, 3, 4), atol=1e-12)
    own = paths.each(x[:12].reshape(4, 3, 2))
    assert torch.allclose(own, torch.stack([every[s, 3 * s : 3 * s + 3] for s in range(4)]), atol=1e-12)


def test_the_seed_decides_and_nothing_global_is_touched():
    model, x = case("rbf-ard")
    found = posterior(model, model.likelihood)
    state = torch.get_rng_state()
    first = found.paths(2, seeded(0))(x)
    assert torch.equal(first, found.paths(2, seeded(0))(x))
    assert not torch.equal(first, found.paths(2, seeded(1))(x))
    assert torch.equal(state, torch.get_rng_state())


def test_the_stated_error_falls_with_the_features():
    model, _ = case("rbf-ard")
    found = posterior(model, model.likelihood)
    few, many = (found.paths(1, seeded(0), features=m).prior_error for m in (64, 4096))
    assert many < 1 / (2 * 4096) ** 0.5 * 1.5
    assert few > 3 * many


def test_paths_keep_to_the_data():
    """Each value within six standard deviations; false alarm: 1e-6."""
    model, _ = case("matern52-zero-mean")
    model.likelihood.noise = 1e-4
    x = model.train_inputs[0]
    found = posterior(model, model.likelihood)
    values = found.paths(5, seeded(0))(x)
    assert float(((values - found.mean(x)) / found.variance(x).sqrt()).abs().max()) < 6
    assert float(found.variance(x).max()) < 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_solver_for_paths_alone(dtype):
    """In float32 where that serves, in float64 where it does not, and none for the mean."""
    for noise, serves in ((0.1, True), (1e-5, False)):
        model, x = case("rbf-ard", dtype)
        model.likelihood.noise_covar.register_constraint("raw_noise", GreaterThan(1e-8))
        model.likelihood.noise = noise
        lazy = Posterior(model, model.likelihood, PosteriorSettings(method="cg", tolerance=1e-5), at_once=False)
        eager = posterior(model.double() if not serves else model, model.likelihood, method="cg", tolerance=1e-5)
        ours, theirs = (one.paths(4, seeded(0))(x) for one in (lazy, eager))
        assert lazy._cache is None
        assert lazy._solver_of_paths._solver[0].dtype == (torch.float32 if serves else torch.float64)
        assert float((ours - theirs).abs().max()) < 2e-3
        held = lazy._solver_of_paths
        lazy.paths(1, seeded(1))
        assert lazy._solver_of_paths is held
        model.likelihood.noise = 2 * noise
        lazy.paths(1, seeded(1))
        assert lazy._solver_of_paths is not held
        lazy.release()
        assert lazy._solver_of_paths is None


def test_of_another_model():
    model, x = case("rbf-ard")
    paths = posterior(model, model.likelihood).paths(1, seeded(0))
    model.likelihood.noise = 0.123
    with pytest.raises(RTGPError, match="draw new paths"):
        paths(x)


def test_what_is_refused():
    model, x = case("generic")
    with pytest.raises(UnsupportedModelError, match="known spectral density"):
        posterior(model, model.likelihood).paths(1)
    model, x = case("rbf-ard")
    found = posterior(model, model.likelihood)
    with pytest.raises(SettingError, match="'n' parameter of sample"):
        found.paths(0)
    with pytest.raises(SettingError, match="'features' parameter of paths"):
        found.paths(1, features=-3)
    with pytest.raises(InputError, match=r"shape \(..., 2, m, d\).*Got \(45, 2\)"):
        found.paths(2, seeded(0)).each(x)
    with pytest.raises(InputError, match=r"shape \(m, 2\)"):
        found.paths(2, seeded(0))(x[:, :1])
