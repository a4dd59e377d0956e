"""Faults that the stress matrix has found, each with the smallest case that showed it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

import rtgp
from gp_models import make
from rtgp._kernels import read_kernel
from rtgp.errors import PrecisionWarning
from rtgp.operators import DenseOperator, TiledOperator
from stress.cells import Cell, Model, evaluate, make_data


def near_pairs(n: int, lengthscale: float, dtype: torch.dtype, outlier: bool) -> Tensor:
    """Points between 0 and 1 with another within a lengthscale of each; the last may lie 1e6 away."""
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(n // 2, 2, generator=generator, dtype=torch.float64)
    second = first + lengthscale * torch.rand(n // 2, 2, generator=generator, dtype=torch.float64)
    x = torch.cat([first, second])
    if outlier:
        x[-1] = 1e6
    return x.to(dtype)


def kernel_of(lengthscale: float, dtype: torch.dtype, nu: float | None = None) -> ScaleKernel:
    base = RBFKernel(ard_num_dims=2) if nu is None else MaternKernel(nu=nu, ard_num_dims=2)
    kernel = ScaleKernel(base).to(dtype)
    base.lengthscale = lengthscale
    return kernel


@pytest.mark.parametrize("nu", [None, 0.5, 2.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_outlier_does_not_take_the_digits_of_the_lengthscales_gradient(dtype: torch.dtype, nu: float | None) -> None:
    """Inputs were centred at their mean, which one point at 1e6 moves by thousands: gradients were off by 3e-3. And the
    polynomial of the Matern 5/2 kernel outgrew its exponential, which is not let fall below e^-60 in float32."""
    x = near_pairs(200, 1e-3, dtype, outlier=True)
    kernel = kernel_of(1e-3, dtype, nu)
    u = torch.randn(200, 1, generator=torch.Generator().manual_seed(1), dtype=dtype)
    TiledOperator(read_kernel(kernel, x), 64).bilinear(u, u).backward()
    found = kernel.base_kernel.raw_lengthscale.grad.double().reshape(-1)
    wide, kernel = x.double(), kernel_of(1e-3, dtype, nu).double()
    difference = (wide[:, None] - wide) / kernel.base_kernel.lengthscale.detach()
    lengthscale = kernel.base_kernel.lengthscale
    squared = ((difference * lengthscale.detach() / lengthscale) ** 2).sum(-1)
    distance = torch.where(squared > 0, squared, 1.0).sqrt()
    values = {
        None: torch.exp(-0.5 * squared),
        0.5: torch.where(squared > 0, torch.exp(-distance), 1.0),
        2.5: torch.where(squared > 0, (1 + 5**0.5 * distance + 5 / 3 * squared) * torch.exp(-(5**0.5) * distance), 1.0),
    }[nu]
    (kernel.outputscale * (u.double() * (values @ u.double())).sum()).backward()
    wanted = kernel.base_kernel.raw_lengthscale.grad.reshape(-1)
    torch.testing.assert_close(found, wanted, rtol=1e-9 if dtype == torch.float64 else 1e-4, atol=0)


@pytest.mark.parametrize("outlier", [False, True])
@pytest.mark.parametrize("lengthscale", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_derivatives_of_short_lengthscales_do_not_cancel(dtype: torch.dtype, lengthscale: float, outlier: bool) -> None:
    """dK v came from expanded squares: off by a tenth in float32 at a lengthscale of 1e-3, by any factor with an
    outlier, in float64 too. Newton steps and standard errors are made of it."""
    x = near_pairs(200, lengthscale, dtype, outlier)
    kernel = kernel_of(lengthscale, dtype)
    v = torch.randn(200, 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    form = read_kernel(kernel, x)
    rows = slice(0, 200)
    wanted = torch.cat([t.double() @ v.double() for _, t in form.tangents(rows, rows)])
    for operator in (DenseOperator(form, 64), TiledOperator(form, 64)):
        found = operator.derivative_matmul(v).double()
        tolerance = 1e-6 if dtype == torch.float64 else 1e-3
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))


@pytest.mark.filterwarnings("ignore::rtgp.errors.PrecisionWarning")
@pytest.mark.parametrize("noise", [1e-4, 1e-5, 1e-6])
def test_cholesky_in_float32_beyond_its_limit(noise: float) -> None:
    """It warned, or not even that, and went on in float32: gradients were off by 3e-3 at a noise of 1e-4, by more than
    their size at 1e-6."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 2, generator=generator)
    y = torch.sin(6 * x[:, 0]) + 0.3 * torch.randn(300, generator=generator)
    found = []
    for dtype in (torch.float32, torch.float64):
        model = make(
            x, y, kernel=kernel_of(0.1, torch.float32), likelihood=GaussianLikelihood(noise_constraint=Positive())
        )
        model.kernel.base_kernel.lengthscale, model.likelihood.noise = 0.1, noise
        model = model.to(dtype)
        model.set_train_data(x.to(dtype), y.to(dtype), strict=False)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
        mll(model(x.to(dtype)), y.to(dtype)).backward()
        found.append(torch.cat([p.grad.double().reshape(-1) for p in model.parameters()]))
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-4


@pytest.mark.parametrize("lengthscale", [1e-3, 1e-2])
def test_repeated_points_with_short_lengthscales(lengthscale: float) -> None:
    """Three targets at every point, noise 1e-8: weights of 10^15 on pairs without a difference rounded the gradient in
    the lengthscales, by 3e-4 of all gradients' terms."""
    data = make_data(300, "duplicates")
    found = evaluate(Cell(300, "duplicates", lengthscale, 1e-8, "float64", "cholesky"), data)
    assert found.gradient_error < 1e-6, found


@pytest.mark.parametrize("method", ["cg", "rr-cg"])
@pytest.mark.parametrize("lengthscale", [10.0, 1e3])
def test_float32_where_all_points_are_alike(method: str, lengthscale: float) -> None:
    """Entries of K that are nearly one number share their rounding errors: at a noise of 1e-4 gradients were off by .02
    to .2 of their terms, without a warning. Such a system is now solved in float64."""
    found = evaluate(Cell(300, "grid", lengthscale, 1e-4, "float32", method), make_data(300, "grid"))
    assert found.worked_in == "float64"
    assert found.gradient_error < 1e-4, found


def test_ordinary_systems_stay_in_float32() -> None:
    found = evaluate(Cell(300, "grid", 1.0, 1e-2, "float32", "rr-cg"), make_data(300, "grid"))
    assert found.worked_in == "float32"
    assert found.outcome == "right", found


@pytest.mark.parametrize("noise", [1e-11, 1e-13])
def test_float64_says_where_it_ends_too(noise: float) -> None:
    """A condition number of 3e15: gradients off by 5e-3, and not a word. At 3e13 they are right, and none is needed."""
    data = make_data(300, "grid")
    x, y = torch.tensor(data.x), torch.tensor(data.y)
    model = Model(x, y, 1.0, noise)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
    words = r"float64 is too coarse .* Raise the lower bound of the noise\.$"
    with pytest.warns(PrecisionWarning, match=words) if noise < 1e-12 else nullcontext():
        mll(model(x), y)
