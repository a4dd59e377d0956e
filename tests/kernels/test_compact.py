"""Wendland's kernels against GPyTorch's own, in float64."""

from __future__ import annotations

import gpytorch
import pytest
import torch

from rtgp._kernels import read_kernel
from rtgp._kernels.compact import of_gpytorch, piecewise_polynomial
from rtgp._kernels.formulas import negligible_beyond
from rtgp._kernels.stationary import Stationary
from rtgp.operators import TiledOperator

degrees = pytest.mark.parametrize("q", [0, 1, 2, 3])
inputs = pytest.mark.parametrize("d", [1, 2, 5])


def made(q: int, d: int) -> tuple[gpytorch.kernels.ScaleKernel, torch.Tensor]:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.PiecewisePolynomialKernel(q=q, ard_num_dims=d)).double()
    kernel.base_kernel.lengthscale = torch.linspace(2.0, 3.0, d)
    x = torch.randn(40, d, generator=torch.Generator().manual_seed(q), dtype=torch.float64)
    x[3] = x[2]
    return kernel, x


@degrees
@inputs
def test_values_are_those_of_gpytorch(q: int, d: int) -> None:
    kernel, x = made(q, d)
    form = read_kernel(kernel, x)
    assert isinstance(form.form, Stationary)
    found = form.block(slice(0, 40), slice(0, 40))
    torch.testing.assert_close(found, kernel(x).to_dense().detach(), rtol=0.0, atol=1e-7)
    assert (found == 0).any()


@degrees
@inputs
def test_gradients_are_those_of_gpytorch(q: int, d: int) -> None:
    kernel, x = made(q, d)
    u, v = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad(TiledOperator(read_kernel(kernel, x), 16).bilinear(u, v), list(kernel.parameters()))
    theirs = torch.autograd.grad((u * (kernel(x).to_dense() @ v)).sum(), list(kernel.parameters()))
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)


@degrees
@inputs
def test_the_slope_is_the_derivative_and_both_are_one(q: int, d: int) -> None:
    formula = of_gpytorch(q, d)
    squared = torch.linspace(0.01, 1.3, 50, dtype=torch.float64).requires_grad_()
    with torch.enable_grad():
        distance = squared.sqrt()
        exact = formula.value(squared.detach().clone())
    step = 1e-6
    numerical = (formula.value(squared.detach() + step) - formula.value(squared.detach() - step)) / (2 * step)
    slope = formula.slope(squared.detach().clone())
    away = (distance.detach() - 1.0).abs() > 1e-3  # from the kink of the least smooth
    torch.testing.assert_close(slope[away], numerical[away], rtol=1e-5, atol=1e-7)
    value, other = formula.both(squared.detach().clone())
    assert torch.equal(value, exact)
    assert torch.equal(other, slope)


@degrees
def test_nothing_is_left_beyond_one_lengthscale(q: int) -> None:
    formula = piecewise_polynomial(q, 2)
    assert negligible_beyond(formula, 0.0) == formula.support == 1.0
    beyond = torch.tensor([1.0, 1.5, 100.0, 1e12], dtype=torch.float64)
    assert not formula.value(beyond.clone()).any()
    assert not formula.slope(beyond.clone()).any()


@inputs
def test_the_quadratic_coefficient_is_the_installed_ones(d: int) -> None:
    """In R^1, where (5 j + 3) / 3 with j = 3 is 6 and the one of the book 8, the two kernels differ."""
    kernel, x = made(2, d)
    dense = kernel(x).to_dense().detach()
    ours = read_kernel(kernel, x).block(slice(0, 40), slice(0, 40))
    assert float((ours - dense).abs().max()) <= 1e-7
    book = piecewise_polynomial(2, d)
    other = piecewise_polynomial(2, d, 0.0)
    half = torch.tensor([0.25], dtype=torch.float64)
    assert float(book.value(half.clone())) > float(other.value(half.clone()))
