"""Gradients of predictions in the new points, at all batch shapes: as finite differences and GPyTorch have them."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch

from posterior.cases import CASES, case
from rtgp.posterior import posterior

SHAPES = [(4, 2), (3, 1, 2), (2, 3, 2), (2, 1, 3, 2)]
METHODS = ["cholesky", "cg"]
# Of the paths in float64; the tolerance of CG is such that a gradient is right to 1e-6 too.
CLOSE = 1e-6
TIGHT = 1e-8


def points(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.7


def weights_like(x, seed=9):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gpytorch_joint(model, x):
    """Mean and covariance with the gradients of GPyTorch's Cholesky."""
    model = copy.deepcopy(model).double().eval()
    slow = gpytorch.settings.fast_computations(False, False, False)
    with slow, gpytorch.settings.fast_pred_var(False), gpytorch.settings.debug(False):
        predicted = [model(one) for one in x.flatten(0, -3)] if x.ndim > 2 else [model(x)]
        mean = torch.stack([one.mean for one in predicted])
        covariance = torch.stack([one.covariance_matrix for one in predicted])
    return mean.reshape(x.shape[:-1]), covariance.reshape(*x.shape[:-1], x.shape[-2])


def gradient(values, x):
    return torch.autograd.grad((values * weights_like(values)).sum(), x)[0]


def relative(found, expected):
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["rbf-ard", "sum", "generic", "deep", "linear-mean", "fixed-noise"])
def test_gradients_agree_with_gpytorch(name, method, shape):
    model, _ = case(name)
    x = points(shape).requires_grad_(True)
    mean, covariance = gpytorch_joint(model, x)
    found = posterior(model, model.likelihood, method=method, tolerance=TIGHT)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    for ours, theirs in (
        (found.mean(x), mean),
        (found.variance(x), variance),
        (found.covariance(x), covariance),
        (found.distribution(x).mean, mean),
        (found.distribution(x).covariance_matrix, covariance),
    ):
        assert ours.shape == theirs.shape
        assert relative(ours, theirs) < CLOSE
        symmetric = theirs.ndim > x.ndim - 1
        weights = weights_like(theirs)
        weights = weights + weights.mT if symmetric else weights
        (own,) = torch.autograd.grad((ours * weights).sum(), x, retain_graph=True)
        (expected,) = torch.autograd.grad((theirs * weights).sum(), x, retain_graph=True)
        assert relative(own, expected) < CLOSE


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["matern52-zero-mean", "product", "generic", "deep"])
def test_gradients_agree_with_finite_differences(name, method):
    model, _ = case(name)
    found = posterior(model, model.likelihood, method=method, tolerance=TIGHT)
    x, step = points((2, 3, 2)).requires_grad_(True), 1e-5

    def sample(z):
        return found.sample(z, 3, torch.Generator().manual_seed(4))

    for value in (found.mean, found.variance, found.covariance, sample):
        expected = torch.empty_like(x)
        for index in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
            move = torch.zeros_like(x)
            move[tuple(index)] = step
            above, below = ((value((x + s * move).detach().requires_grad_(True)).detach()) for s in (1, -1))
            expected[tuple(index)] = ((above - below) * weights_like(above)).sum() / (2 * step)
        assert relative(gradient(value(x), x), expected) < CLOSE


@pytest.mark.parametrize("name", list(CASES))
def test_a_tape_and_batches_change_no_value(name):
    model, x = case(name)
    found = posterior(model, model.likelihood, method="cg", tolerance=TIGHT)
    batched = x[:12].reshape(3, 4, 2)
    for value in (found.mean, found.variance):
        plain = value(x[:12])
        assert not plain.requires_grad
        assert torch.equal(value(batched), plain.reshape(3, 4))
        assert relative(value(batched.clone().requires_grad_(True)).detach(), plain.reshape(3, 4)) < CLOSE
    joint = found.covariance(batched)
    for block, own in zip(batched, joint, strict=True):
        assert relative(own, found.covariance(block)) < CLOSE


def test_hyperparameters_get_no_gradient():
    """The solves do not follow them: what they would get is wrong."""
    model, _ = case("deep")
    model.zero_grad()
    x = points((2, 3, 2)).requires_grad_(True)
    found = posterior(model, model.likelihood)
    (found.mean(x).sum() + found.covariance(x).sum()).backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_tape_where_autograd_does_not_record():
    model, _ = case("rbf-ard")
    found = posterior(model, model.likelihood)
    x = points((4, 2)).requires_grad_(True)
    with torch.no_grad():
        assert not found.mean(x).requires_grad
        assert not found.covariance(x).requires_grad
    assert found.mean(x).requires_grad


def test_gradient_through_what_comes_before():
    model, _ = case("rbf-ard")
    found = posterior(model, model.likelihood)
    raw = points((3, 2)).requires_grad_(True)
    found.variance(torch.tanh(raw)).sum().backward()
    x = torch.tanh(raw.detach()).requires_grad_(True)
    found.variance(x).sum().backward()
    assert relative(raw.grad, x.grad * (1 - x.detach() ** 2)) < 1e-12


@pytest.mark.parametrize("rank", [5, 120])
def test_lanczos_variances_have_their_own_gradient(rank):
    model, _ = case("rbf-ard")
    found = posterior(model, model.likelihood, variance="lanczos", rank=rank)
    x, step = points((3, 2)).requires_grad_(True), 1e-5
    expected = torch.empty(3, 2, dtype=torch.float64)
    for column in range(2):
        move = torch.zeros(3, 2, dtype=torch.float64)
        move[:, column] = step
        expected[:, column] = (found.variance(x.detach() + move) - found.variance(x.detach() - move)) / (2 * step)
    (own,) = torch.autograd.grad(found.variance(x).sum(), x)
    assert relative(own, expected) < CLOSE


def test_float32_models():
    model, _ = case("rbf-ard", torch.float32)
    wide, _ = case("rbf-ard")
    x = points((2, 3, 2))
    single = x.float().requires_grad_(True)
    double = single.detach().double().requires_grad_(True)
    for method in METHODS:
        ours, theirs = posterior(model, model.likelihood, method=method), posterior(wide, wide.likelihood)
        for name in ("mean", "variance", "covariance"):
            found, expected = getattr(ours, name)(single), getattr(theirs, name)(double)
            assert found.dtype == torch.float32
            assert relative(gradient(found.double(), single).double(), gradient(expected, double)) < 2e-2
