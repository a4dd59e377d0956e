"""Predictions of several outputs that share one kernel and noise, against the equations and against each alone."""

from __future__ import annotations

import gpytorch
import pytest
import torch

import rtgp
from rtgp.errors import InputError, UnsupportedModelError
from rtgp.posterior._outputs import OutputsPosterior


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=y.shape[:-1])
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    def forward(self, x):
        mean, kernel = self.mean_module(x), self.covar_module(x)
        return (
            rtgp.SharedOutputs(mean, kernel)
            if mean.ndim == 2
            else gpytorch.distributions.MultivariateNormal(mean, kernel)
        )


def made(n=40, t=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    y = torch.stack([torch.sin((3 + k) * x[:, k % 2]) for k in range(t)])
    y += 0.1 * torch.randn(y.shape, dtype=torch.float64, generator=generator)
    model = Model(x, y).double()
    alone = [Model(x, y[k]).double() for k in range(t)]
    for k, one in enumerate([model, *alone]):
        one.likelihood.noise = 0.02
        one.covar_module.base_kernel.lengthscale = 0.4
        with torch.no_grad():
            constants = torch.linspace(0.1, 0.3, t, dtype=torch.float64)
            one.mean_module.constant.copy_(constants if k == 0 else constants[k - 1])
    return model, alone, torch.rand(6, 2, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_moments_are_those_of_each_output_alone(method):
    model, alone, new = made()
    at = rtgp.posterior(model, model.likelihood, method=method, tolerance=1e-10)
    assert isinstance(at, OutputsPosterior)
    each = [rtgp.posterior(one, one.likelihood, method="cholesky") for one in alone]
    torch.testing.assert_close(at.mean(new), torch.stack([one.mean(new) for one in each]), rtol=1e-7, atol=1e-7)
    for one in each:
        torch.testing.assert_close(at.variance(new, include_noise=True), one.variance(new, include_noise=True))
        torch.testing.assert_close(at.covariance(new), one.covariance(new), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_samples_have_these_moments(method):
    """20,000 draws of six points: every mean within 5 and every covariance within 6 standard errors, about 250 numbers:
    a false alarm is below 2e-4."""
    model, _, new = made()
    at = rtgp.posterior(model, model.likelihood, method=method, tolerance=1e-10)
    drawn = at.sample(new, 20_000, torch.Generator().manual_seed(1))
    assert drawn.shape == (20_000, 3, 6)
    mean, covariance = at.mean(new), at.covariance(new)
    error = (covariance.diagonal() / len(drawn)).sqrt()
    assert float(((drawn.mean(0) - mean).abs() / error).max()) < 5.0
    centred = (drawn - mean).flatten(1)
    found = centred.T @ centred / len(drawn)
    wanted = torch.block_diag(*[covariance] * 3)
    spread = wanted.diagonal()
    error = ((spread[:, None] * spread + wanted.square()) / len(drawn)).sqrt()
    assert float(((found - wanted).abs() / error).max()) < 6.0


def test_samples_are_those_of_the_seed():
    model, _, new = made()
    at = rtgp.posterior(model, model.likelihood)
    first, second = (at.sample(new, 3, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first, second)


def test_it_follows_its_model():
    model, _, new = made()
    at = rtgp.posterior(model, model.likelihood)
    before = at.mean(new)
    model.covar_module.base_kernel.lengthscale = 0.2
    assert not torch.allclose(before, at.mean(new))


def test_neighbours_are_of_one_output():
    model, _, _ = made()
    with pytest.raises(UnsupportedModelError, match="one output for predictions from neighbours"):
        rtgp.posterior(model, model.likelihood, neighbours=5)


def test_a_batch_of_models_is_not_taken_for_outputs():
    x = torch.rand(10, 1, dtype=torch.float64)
    y = torch.rand(2, 10, dtype=torch.float64)

    class Batch(Model):
        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Batch(x, y).double()
    with pytest.raises((UnsupportedModelError, InputError)):
        rtgp.posterior(model, model.likelihood).mean(x)


def test_shapes_that_are_no_outputs():
    x = torch.rand(10, 1, dtype=torch.float64)

    class Odd(Model):
        def forward(self, x):
            return rtgp.SharedOutputs(self.mean_module(x)[0], self.covar_module(x))

    model = Odd(x, torch.rand(2, 10, dtype=torch.float64)).double()
    with pytest.raises(InputError, match="SharedOutputs of means"):
        rtgp.fit(model, model.likelihood, x, model.train_targets)


def test_what_there_is_of_one_output_only():
    model, _, new = made()
    at = rtgp.posterior(model, model.likelihood)
    for ask in (
        lambda: at.mean(new[None]),
        lambda: at.variance(new.clone().requires_grad_()),
        lambda: at.paths(3),
        lambda: at.distribution(new),
    ):
        with pytest.raises(UnsupportedModelError, match=r"Expected (a model of one output|points)"):
            ask()
