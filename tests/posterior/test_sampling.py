"""Samples have the posterior's moments: fixed-seed z-tests, with a companion that shows their power.

False alarm: 1e-6 for each comparison, at most 1e-3 for a test with a new seed.
"""

from __future__ import annotations

import math

import pytest
import torch

from posterior.cases import case, gpytorch_prediction
from rtgp.errors import InputError, SettingError
from rtgp.posterior import posterior
from rtgp.posterior._sampling import SamplingSettings
from rtgp.posterior._settings import PredictionSettings

COUNT = 4000
LEVEL = 4.9  # |z| beyond this has probability 1e-6 in each of the (fewer than 1000) comparisons of a test


def largest_z(samples, mean, covariance):
    """Of the means and of all products of two points' deviations."""
    count = samples.shape[0]
    deviations = samples.double() - mean
    z_mean = deviations.mean(0) / (covariance.diagonal() / count).sqrt()
    found = deviations.T @ deviations / count
    scale = (covariance.square() + covariance.diagonal()[:, None] * covariance.diagonal()) / count  # Wick
    return max(float(z_mean.abs().max()), float(((found - covariance) / scale.sqrt()).abs().max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("route", ["matheron", "root"])
@pytest.mark.parametrize("method", ["cholesky", "cg"])
@pytest.mark.parametrize("name", ["rbf-ard", "deep", "fixed-noise"])
def test_moments(name, method, route, dtype):
    settings = PredictionSettings(sampling=SamplingSettings(joint_limit=0)) if route == "root" else None
    model, x = case(name, dtype)
    x = x[-30:]
    found = posterior(model, model.likelihood, method=method, _settings=settings)
    samples = found.sample(x, COUNT, torch.Generator().manual_seed(1))
    assert samples.shape == (COUNT, 30)
    assert samples.dtype == dtype
    assert largest_z(samples, *gpytorch_prediction(model, x)) < LEVEL


def test_that_test_has_power():
    """Draws of the prior's shape, or with the mean off by a tenth of a standard deviation, do not pass."""
    model, x = case("rbf-ard")
    mean, covariance = gpytorch_prediction(model, x[:30])
    samples = posterior(model, model.likelihood).sample(x[:30], COUNT, torch.Generator().manual_seed(1))
    assert largest_z(samples * 1.1 - 0.1 * mean, mean, covariance) > LEVEL
    assert largest_z(samples, mean + 0.1 * covariance.diagonal().sqrt(), covariance) > LEVEL
    assert math.isfinite(LEVEL)


def test_the_generator_decides():
    model, x = case("rbf-ard")
    found = posterior(model, model.likelihood)
    state = torch.get_rng_state()
    first = found.sample(x, 3, torch.Generator().manual_seed(5))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first, found.sample(x, 3, torch.Generator().manual_seed(5)))
    assert not torch.equal(first, found.sample(x, 3, torch.Generator().manual_seed(6)))


def test_samples_are_exact_whatever_the_variance():
    model, x = case("rbf-ard")
    found = posterior(model, model.likelihood, variance="lanczos", rank=1)
    samples = found.sample(x[:20], COUNT, torch.Generator().manual_seed(2))
    assert largest_z(samples, *gpytorch_prediction(model, x[:20])) < LEVEL


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_bad_number_of_samples(n):
    model, x = case("rbf-ard")
    with pytest.raises(SettingError, match="positive integer"):
        posterior(model, model.likelihood).sample(x, n)


def test_too_many_points_for_a_joint_distribution():
    model, x = case("rbf-ard")
    found = posterior(model, model.likelihood)
    many = x[:1].expand(20_000, -1)
    for call in (found.covariance, lambda z: found.sample(z, 1)):
        with pytest.raises(InputError, match=r"at most 11,585 points.*Got 20,000.*use \.variance"):
            call(many)
