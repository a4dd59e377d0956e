"""Parameters stay inside their constraints and the support of their priors, whatever an optimiser does."""

from __future__ import annotations

import copy
import math

import gpytorch
import pytest
import torch
from botorch.utils.constraints import LogTransformedInterval, NonTransformedInterval
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import (
    GammaPrior,
    HalfCauchyPrior,
    LogNormalPrior,
    NormalPrior,
    SmoothedBoxPrior,
    UniformPrior,
)

import rtgp
from gp_models import Model
from rtgp.training._coordinates import Inside, Log, Plain, Wide, coordinates_of

BOUNDS = {
    "greater, no transform": (GreaterThan(0.025, transform=None, initial_value=0.5), None),
    "greater, softplus": (GreaterThan(0.025), None),
    "positive, no transform": (Positive(transform=None, initial_value=0.5), None),
    "positive, exp": (Positive(transform=torch.exp, inv_transform=torch.log), None),
    "interval, sigmoid": (Interval(0.1, 3.0), None),
    "interval, no transform": (NonTransformedInterval(0.1, 3.0, initial_value=0.5), None),
    "interval, exp": (LogTransformedInterval(0.01, 1e4, initial_value=1.0), None),
    "less, no transform": (LessThan(3.0, transform=None, initial_value=0.5), None),
    "less, softplus": (LessThan(3.0), None),
    "far interval": (Interval(1000.0, 1001.0), None),
    "lognormal": (GreaterThan(0.0, transform=None, initial_value=0.5), LogNormalPrior(0.0, 1.0)),
    "lognormal, interval": (Interval(0.0, 3.0), LogNormalPrior(0.0, 1.0)),
    "uniform within softplus": (Positive(), UniformPrior(0.3, 2.0)),
    "uniform, same bounds": (Interval(0.3, 2.0), UniformPrior(0.3, 2.0)),
    "gamma": (Positive(), GammaPrior(2.0, 1.0)),
    "half-Cauchy, less": (LessThan(2.0, transform=None, initial_value=1.0), HalfCauchyPrior(1.0)),
    "smoothed box": (Positive(), SmoothedBoxPrior(0.1, 2.0)),
}


def _kernel(name: str, dtype: torch.dtype) -> RBFKernel:
    constraint, prior = copy.deepcopy(BOUNDS[name])
    return RBFKernel(lengthscale_constraint=constraint, lengthscale_prior=prior).to(dtype)


def _strictly_inside(kernel: RBFKernel) -> bool:
    value, constraint = kernel.lengthscale, kernel.raw_lengthscale_constraint
    inside = bool((value >= constraint.lower_bound).all() and (value <= constraint.upper_bound).all())
    priors = [prior.log_prob(closure(module)) for _, module, prior, closure, _ in kernel.named_priors()]
    return inside and all(bool(torch.isfinite(density).all()) for density in priors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BOUNDS)
def test_no_step_leaves_the_bounds(name: str, dtype: torch.dtype) -> None:
    kernel = _kernel(name, dtype)
    (coordinate,) = coordinates_of(kernel, dict(kernel.named_parameters()))
    for far in (-1e6, -50.0, -17.0, -3.0, 0.0, 3.0, 17.0, 50.0, 1e6):
        with torch.no_grad():
            coordinate.leaf.fill_(far)
        coordinate.push()
        assert _strictly_inside(kernel), f"at {far}: {kernel.lengthscale.item()}"


@pytest.mark.parametrize("name", BOUNDS)
def test_leaf_and_parameter_say_the_same(name: str) -> None:
    kernel = _kernel(name, torch.float64)
    parameters = dict(kernel.named_parameters())
    (coordinate,) = coordinates_of(kernel, parameters)
    coordinate.push()
    value = kernel.lengthscale.detach().clone()
    leaf = coordinate.leaf.clone()
    coordinate.pull()
    coordinate.push()
    torch.testing.assert_close(kernel.lengthscale.detach(), value, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(coordinate.leaf, leaf, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", BOUNDS)
def test_the_slope_is_the_derivative(name: str) -> None:
    kernel = _kernel(name, torch.float64)
    (parameter,) = kernel.parameters()
    (coordinate,) = coordinates_of(kernel, dict(kernel.named_parameters()))
    coordinate.push()
    slope, here, eps = coordinate.slope(), coordinate.leaf.clone(), 1e-5
    ends = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            coordinate.leaf.copy_(here + sign * eps)
        coordinate.push()
        ends.append(parameter.detach().clone())
    torch.testing.assert_close((ends[0] - ends[1]) / (2 * eps), slope, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "constraint, start, moved",
    [
        (GreaterThan(1e-4, transform=None, initial_value=1e-4), 1e-4, 2e-4),
        (GreaterThan(1e-4, transform=None, initial_value=1e-4), -7.0, 2e-4),
        (Positive(transform=None, initial_value=0.0), 0.0, 1e-2),
        (NonTransformedInterval(0.0, 2.0, initial_value=0.0), 0.0, 2e-2),
        (NonTransformedInterval(0.5, 2.5, initial_value=0.5), 2.5, 2.48),
        (NonTransformedInterval(1e-5, 1e5, initial_value=1.0), 1e-5, 2e-5),
        (LessThan(-3.0, transform=None, initial_value=-3.0), -3.0, -6.0),
        (GreaterThan(1e-4, transform=None, initial_value=1.0), 0.3, 0.3),
    ],
)
def test_a_start_on_its_bound_is_moved_inside(constraint: Interval, start: float, moved: float) -> None:
    kernel = RBFKernel(lengthscale_constraint=constraint).double()
    kernel.raw_lengthscale.data.fill_(start)
    coordinates_of(kernel, dict(kernel.named_parameters()))
    assert kernel.lengthscale.item() == pytest.approx(moved, rel=1e-6)


def test_a_start_outside_a_prior_is_moved_into_its_support() -> None:
    kernel = RBFKernel(lengthscale_prior=UniformPrior(0.01, 0.5)).double()  # it starts at log 2
    coordinates_of(kernel, dict(kernel.named_parameters()))
    assert kernel.lengthscale.item() == pytest.approx(0.5 - 0.0049)


def test_a_prior_bounds_its_own_parameter_alone() -> None:
    """Both start at the same value; the prior of one is none of the other's business."""
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=UniformPrior(0.1, 2.0))).double()
    names = dict(kernel.named_parameters())
    kinds = dict(zip(names, map(type, coordinates_of(kernel, names)), strict=True))
    assert kinds == {"raw_outputscale": Log, "base_kernel.raw_lengthscale": Inside}


def test_what_has_no_bounds_moves_freely() -> None:
    mean = gpytorch.means.ConstantMean(constant_prior=NormalPrior(0.0, 1.0))
    (coordinate,) = coordinates_of(mean, dict(mean.named_parameters()))
    assert isinstance(coordinate, Wide)


def test_a_users_optimiser_is_put_back_between_the_bounds() -> None:
    kernel = _kernel("interval, no transform", torch.float32)
    (coordinate,) = coordinates_of(kernel, dict(kernel.named_parameters()), logarithms=False)
    assert isinstance(coordinate, Plain)
    assert coordinate.leaf is kernel.raw_lengthscale
    for far in (-5.0, 5.0):
        with torch.no_grad():
            coordinate.leaf.fill_(far)
        coordinate.push()
        assert 0.1 < kernel.lengthscale.item() < 3.0


@pytest.mark.parametrize("optimizer", ["average-information", "adam", "lbfgs", "multistep", torch.optim.Adam])
def test_every_optimiser_respects_bounds_without_a_transform(optimizer: object) -> None:
    """The optimum of the noise is below its bound; from a subset, Newton's and Adam's steps would cross it."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(220, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(5 * x[:, 0]) + x[:, 1]  # no noise
    noise = GreaterThan(1e-3, transform=None, initial_value=0.1)
    likelihood = GaussianLikelihood(noise_constraint=noise, noise_prior=LogNormalPrior(-4.0, 1.0))
    lengthscale = GreaterThan(2.5e-2, transform=None, initial_value=1.0)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_constraint=lengthscale))
    model = Model(x, y, likelihood, kernel).double()
    seen: list[tuple[float, float]] = []

    def watch(row: object, model: object) -> None:
        seen.append((likelihood.noise.item(), kernel.base_kernel.lengthscale.min().item()))

    rate = 0.1 if optimizer in ("multistep", torch.optim.Adam) else None
    result = rtgp.fit(
        model, likelihood, x, y, rtgp.RRCG(), optimizer, 25, rate, callback=watch, subset_start=optimizer == "adam"
    )
    assert math.isfinite(result.loss)
    assert min(noise for noise, _ in seen) > 1e-3
    assert min(scale for _, scale in seen) > 2.5e-2


def test_a_prior_on_a_function_of_parameters_raises_our_error() -> None:
    """No coordinate can keep it; the step is taken back, and at the start the error says what to do."""
    x = torch.rand(20, 1, dtype=torch.float64)
    model = Model(x, x[:, 0], GaussianLikelihood()).double()
    kernel = model.kernel.base_kernel
    kernel.register_prior("odd", LogNormalPrior(0.0, 1.0), lambda m: m.lengthscale - 5.0)
    with pytest.raises(rtgp.errors.InputError, match="support of their priors"):
        rtgp.fit(model, model.likelihood, x, x[:, 0], rtgp.Cholesky())
