"""BoTorch's transforms of inputs and outcomes: results in the units of the model's own `posterior`."""

from __future__ import annotations

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Bilog, ChainedOutcomeTransform, Log, Normalize, Standardize
from botorch.models.transforms.input import ChainedInputTransform, Warp

from gp_models import airports
from rtgp.errors import UnsupportedModelError
from rtgp.posterior import posterior

# BoTorch's advice on data that are not scaled; that they are not is what the transforms are for.
pytestmark = pytest.mark.filterwarnings("ignore:Data .*:botorch.exceptions.warnings.InputDataWarning")

N = 60
X, y = airports(N + 12)
X, Y = 3.0 + 5.0 * X, (40.0 + 9.0 * y)[:, None]
NEW = X[N:].reshape(3, 4, 2)


def warp() -> Warp:
    made = Warp(d=2, indices=[0, 1])
    made.concentration0.data.fill_(1.7), made.concentration1.data.fill_(0.6)
    return made


INPUTS = {
    "none": lambda: None,
    "normalize": lambda: Normalize(2),
    "warp": lambda: ChainedInputTransform(norm=Normalize(2), warp=warp()),
}
OUTCOMES = {
    "none": (lambda: None, lambda v: (v - 40.0) / 9.0),
    "standardize": (lambda: Standardize(1), lambda v: v),
    "log": (Log, lambda v: (v / 40.0).exp()),
    "log, standardize": (lambda: ChainedOutcomeTransform(a=Log(), b=Standardize(1)), lambda v: (v / 40.0).exp()),
}


def model(inputs: str, outcome: str) -> SingleTaskGP:
    transform, values = OUTCOMES[outcome]
    made = SingleTaskGP(X[:N], values(Y[:N]), outcome_transform=transform(), input_transform=INPUTS[inputs]())
    made.covar_module.lengthscale = 0.4
    made.likelihood.noise = 0.05
    return made


@pytest.mark.parametrize("outcome", list(OUTCOMES))
@pytest.mark.parametrize("inputs", list(INPUTS))
@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_as_botorch_has_them(inputs, outcome, method):
    made = model(inputs, outcome)
    found = posterior(made, made.likelihood, method=method, tolerance=1e-9)
    x = NEW.clone().requires_grad_(True)
    for noisy in (False, True):
        wanted = made.posterior(x, observation_noise=noisy)
        pairs = [(found.variance(x, include_noise=noisy), wanted.variance)]
        pairs += [] if noisy else [(found.mean(x), wanted.mean)]
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs[..., 0], rtol=1e-6, atol=1e-7)
            slopes = [torch.autograd.grad(v.sum(), x, retain_graph=True)[0] for v in (ours, theirs)]
            torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-6 * float(slopes[1].abs().max()))
        if "log" not in outcome:
            ours, theirs = found.distribution(x, include_noise=noisy), wanted.distribution
            torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(ours.covariance_matrix, theirs.covariance_matrix, rtol=1e-6, atol=1e-7)
            own = found.covariance(NEW[0], include_noise=noisy)
            torch.testing.assert_close(own, theirs.covariance_matrix[0].detach(), rtol=1e-6, atol=1e-7)


def test_samples_of_a_logarithm_are_positive_and_paths_are_in_units() -> None:
    made = model("normalize", "log")
    found = posterior(made, made.likelihood)
    generator = torch.Generator().manual_seed(0)
    for values in (found.sample(NEW, 5, generator), found.sample(NEW[0], 5, generator), found.paths(5, generator)(NEW)):
        assert bool((values > 0).all())
    made = model("normalize", "standardize")
    paths = posterior(made, made.likelihood).paths(50, generator)(NEW).mean(0)
    assert bool(((paths - made.posterior(NEW).mean[..., 0]).abs() < made.posterior(NEW).variance[..., 0].sqrt()).all())


def test_what_botorch_does_not_know_either() -> None:
    made = model("none", "log")
    found = posterior(made, made.likelihood)
    for call in (found.covariance, found.distribution):
        with pytest.raises(UnsupportedModelError, match=r"Expected an outcome transform whose covariance.*Got Log"):
            call(NEW[0])
    made = SingleTaskGP(X[:N], y[:N, None], outcome_transform=Bilog(), input_transform=Normalize(2))
    found = posterior(made, made.likelihood)
    for call in (found.mean, found.variance):
        with pytest.raises(UnsupportedModelError, match=r"mean and variance.*Got Bilog.*use .sample or .paths"):
            call(NEW[0])
    assert bool(torch.isfinite(found.sample(NEW[0], 3, torch.Generator().manual_seed(0))).all())
