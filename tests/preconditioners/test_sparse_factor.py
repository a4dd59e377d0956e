"""The sparse inverse factor and its trace, against dense matrices."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch import kernels
from torch import Tensor

import reference
from kernels.test_gpytorch_kernels import MODELS
from rtgp._kernels import KernelForm, read_covariance, read_kernel
from rtgp._preconditioners.nearest import nearest_earlier
from rtgp._preconditioners.sparse_factor import FactorSettings, inverse_factor_rows, trace_of_derivative

N = 40
SMALL = FactorSettings(piece=8 * 3 * 49)  # three blocks at a time


def model(dtype: torch.dtype = torch.float64) -> tuple[kernels.Kernel, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    kernel = kernels.ScaleKernel(kernels.MaternKernel(nu=1.5, ard_num_dims=2)).double()
    kernel.outputscale = 2.0
    noise = 0.05 + 0.1 * torch.rand(N, generator=generator, dtype=torch.float64)
    return kernel.to(dtype), x.to(dtype), noise.to(dtype)


def dense(form: KernelForm, noise: Tensor) -> np.ndarray:
    K = form.block(slice(0, form.size), slice(0, form.size)).double()
    s = noise.detach().double().expand(form.size).rsqrt()
    return (s[:, None] * K * s + torch.eye(form.size, dtype=torch.float64)).numpy()


def scattered(index: Tensor, values: Tensor) -> np.ndarray:
    n = index.shape[0]
    return torch.zeros(n, n, dtype=torch.float64).scatter_add_(1, index, values).numpy()


def order(n: int = N) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("m", [1, 6, N - 1, N + 3])
def test_rows_are_those_of_the_dense_definition(m: int) -> None:
    kernel, x, noise = model()
    form = read_kernel(kernel, x)
    neighbours = nearest_earlier(form, order(), m)
    index, values = inverse_factor_rows(form, noise.rsqrt(), neighbours, settings=SMALL)
    assert index.shape == values.shape == (N, m + 1)
    assert values.dtype == torch.float64
    assert torch.equal(index[:, -1], torch.arange(N))
    missing = neighbours < 0
    assert torch.equal(index[:, :-1][missing], torch.arange(N)[:, None].expand(N, m)[missing])
    assert bool((values[:, :-1][missing] == 0).all())
    A, G = dense(form, noise), scattered(index, values)
    np.testing.assert_allclose(G, reference.inverse_factor(A, neighbours.numpy()), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(np.diag(G @ A @ G.T), 1.0, rtol=1e-10)
    if m >= N - 1:
        np.testing.assert_allclose(G.T @ G, np.linalg.inv(A), rtol=1e-9, atol=1e-10)


def test_less_a_low_rank() -> None:
    kernel, x, noise = model()
    form = read_kernel(kernel, x)
    neighbours = nearest_earlier(form, order(), 6)
    low_rank = 0.1 * torch.randn(N, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    index, values = inverse_factor_rows(form, noise.rsqrt(), neighbours, low_rank, SMALL)
    A = dense(form, noise) - (low_rank @ low_rank.T).numpy()
    wanted = reference.inverse_factor(A, neighbours.numpy())
    np.testing.assert_allclose(scattered(index, values), wanted, rtol=1e-10, atol=1e-11)


def test_a_float32_model_gives_float64_rows() -> None:
    kernel, x, noise = model(torch.float32)
    form = read_kernel(kernel, x)
    index, values = inverse_factor_rows(form, noise.double().rsqrt(), nearest_earlier(form, order(), 6))
    wide = form.widened()
    wanted = inverse_factor_rows(wide, noise.double().rsqrt(), nearest_earlier(form, order(), 6))
    torch.testing.assert_close((index, values), wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("noise", [1e-12, 1e-30])
def test_equal_points_in_hardly_any_noise(noise: float) -> None:
    """Blocks that rounding makes singular get a jitter of their own; the others stay what they are."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[30:50] = x[0]
    form = read_kernel(kernels.RBFKernel().double(), x)
    scale = torch.full((60,), noise, dtype=torch.float64).rsqrt()
    _, values = inverse_factor_rows(form, scale, nearest_earlier(form, order(60), 12))
    assert bool(torch.isfinite(values).all())
    assert bool((values[:, -1] > 0).all())


def test_nothing_is_lost_where_a_low_rank_is_too_large() -> None:
    """A - L L^T may be indefinite altogether: then a point stands alone."""
    kernel, x, noise = model()
    form = read_kernel(kernel, x)
    _, values = inverse_factor_rows(
        form, noise.rsqrt(), nearest_earlier(form, order(), 6), torch.full((N, 2), 100.0, dtype=torch.float64)
    )
    assert bool(torch.isfinite(values).all())
    assert bool((values[:, -1] > 0).all())


@pytest.mark.parametrize("name", ["matern", "sum", "product", "periodic", "additive structure", "deep"])
@pytest.mark.parametrize("known_noise", [False, True], ids=["one noise", "known noise"])
def test_trace_of_the_derivative(name: str, known_noise: bool) -> None:
    """tr(P^-1 dA), by autograd through a dense A with S fixed."""
    generator = torch.Generator().manual_seed(0)
    module = MODELS[name]()
    x = torch.rand(N, 4, generator=generator, dtype=torch.float64)
    noise = 0.3 + torch.rand(N if known_noise else 1, generator=generator, dtype=torch.float64)
    noise = (noise if known_noise else noise[0]).requires_grad_()
    form = read_covariance(module(x))
    s = noise.detach().expand(N).rsqrt()
    index, values = inverse_factor_rows(form, s, nearest_earlier(form, order(), 6))
    parts = trace_of_derivative(form, noise, index, values, SMALL)

    with gpytorch.settings.trace_mode(True):
        K = module(x).to_dense()
    G = torch.from_numpy(scattered(index, values))
    inverse = G.T @ G
    wanted = (inverse * (s[:, None] * K * s)).sum(), (inverse.diagonal() * s.square() * noise).sum()
    parameters = [p for p in module.parameters() if p.requires_grad]
    for part, other in zip(parts, wanted, strict=True):
        assert part.dtype == torch.float64
        torch.testing.assert_close(part, other, rtol=1e-7, atol=1e-7)
    found = torch.autograd.grad(parts[0], parameters, retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(wanted[0], parameters), rtol=1e-6, atol=1e-6)
    by_noise = torch.autograd.grad(parts[1], noise)
    torch.testing.assert_close(by_noise, torch.autograd.grad(wanted[1], noise), rtol=1e-9, atol=1e-9)
    # diag(G A G^T) = 1
    torch.testing.assert_close(sum(parts).detach(), torch.tensor(float(N), dtype=torch.float64), rtol=1e-6, atol=0)
