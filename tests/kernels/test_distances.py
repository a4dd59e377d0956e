"""Squared distances must not cancel: shifted inputs, tiny lengthscales, far points and duplicates."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

import reference
from rtgp._kernels import read_kernel
from rtgp._kernels.formulas import squared_distances

N = 60


def kernel_of(kind: str, lengthscale: float, dtype: torch.dtype) -> gpytorch.kernels.Kernel:
    if kind == "rbf":
        kernel = gpytorch.kernels.RBFKernel()
    else:
        kernel = gpytorch.kernels.MaternKernel(nu={"12": 0.5, "32": 1.5, "52": 2.5}[kind[-2:]])
    kernel = kernel.to(dtype)
    kernel.lengthscale = lengthscale
    return kernel


def compare(x: torch.Tensor, kind: str, lengthscale: float, tolerance: float) -> None:
    """K, and the gradient in x of sum(W * K), against explicit differences in float64 of the same inputs."""
    kernel = kernel_of(kind, lengthscale, x.dtype)
    n, everything = x.shape[0], slice(0, x.shape[0])
    form = read_kernel(kernel, x.requires_grad_())
    z, scales = x.detach().double().numpy(), kernel.lengthscale.detach().double().numpy()[0]
    wanted = reference.kernel_matrix(kind, z, z, scales)
    np.testing.assert_allclose(form.block(everything, everything).double().numpy(), wanted, rtol=0, atol=tolerance)

    W = np.random.default_rng(0).standard_normal((n, n))
    W = W + W.T
    into = form.zero_gradients()
    form.pullback(everything, everything, torch.from_numpy(W).to(x.dtype), into)
    (gradient,) = torch.autograd.grad((form.z * into[0]).sum(), x)
    slope = reference.kernel_input_derivatives(kind, z, z, np.broadcast_to(scales, x.shape[1]))
    expected = 2 * np.einsum("ij,ijd->id", W, slope)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(gradient.double().numpy(), expected, rtol=0, atol=10 * tolerance * scale)


def cloud(d: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(N, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[10:20] = x[:10] + 1e-3 * x[20:30]  # near pairs
    x[30:35] = x[:5]  # equal pairs
    return x


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("d", [1, 3, 4, 5, 20])
@pytest.mark.parametrize("lengthscale", [1e-3, 1.0, 1e3])
def test_shifted_inputs_float64(kind: str, d: int, lengthscale: float) -> None:
    compare(cloud(d) + 1e6, kind, lengthscale, 1e-9)


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("d", [1, 4, 5, 20])
@pytest.mark.parametrize("lengthscale", [1e-3, 1.0])
def test_shifted_inputs_float32(kind: str, d: int, lengthscale: float) -> None:
    compare((cloud(d) + 1e3).float(), kind, lengthscale, 1e-6)


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("d", [3, 8])
@pytest.mark.parametrize("far", [1e3, 1e6])
@pytest.mark.parametrize("outliers", [1, 4])
def test_far_points(kind: str, d: int, far: float, outliers: int) -> None:
    """One wild value, as raw tables have, must not blur the distances of all the others."""
    x = cloud(d)
    x[40 : 40 + outliers] *= far
    compare(x, kind, 0.1, 1e-8)


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("d", [2, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_points_have_covariance_one(kind: str, d: int, dtype: torch.dtype) -> None:
    x = (cloud(d) + 1e3).to(dtype)
    form = read_kernel(kernel_of(kind, 1e-3, dtype), x)
    block = form.block(slice(0, N), slice(0, N))
    assert bool((block.diagonal() == 1.0).all())
    for i in range(5):
        assert block[i, 30 + i] == block[30 + i, i] == 1.0
    assert torch.equal(form.diagonal(), torch.ones(N, dtype=dtype))


def test_many_near_pairs_are_formed_directly() -> None:
    """Both ways of repairing cancellation give the same numbers, and neither a negative one."""
    x = cloud(12)
    exact = (x[:, None, :] - x[None, :, :]).square().sum(-1)
    torch.testing.assert_close(squared_distances(x, x), exact, rtol=1e-9, atol=0)
    clustered = 1.0 + 1e-7 * x
    exact = (clustered[:, None, :] - clustered[None, :, :]).square().sum(-1)
    torch.testing.assert_close(squared_distances(clustered, clustered), exact, rtol=1e-12, atol=0)
    assert squared_distances(x[:0], x).shape == (0, N)


@pytest.mark.parametrize("kind", reference.KINDS)
def test_derivative_products_at_tiny_lengthscale(kind: str) -> None:
    x = cloud(3) + 1e3
    kernel = kernel_of(kind, 1e-3, torch.float64)
    form = read_kernel(kernel, x)
    everything, v = slice(0, N), torch.ones(N, 1, dtype=torch.float64)
    ((_, product),) = form.derivatives(everything, everything, v)
    ((_, tangent),) = form.tangents(everything, everything)
    z, scale = x.numpy(), float(kernel.lengthscale.detach())
    wanted = reference.kernel_lengthscale_derivatives(kind, z, np.full(3, scale)).sum(0)
    wanted = wanted / (1 + np.exp(-float(kernel.raw_lengthscale.detach())))
    np.testing.assert_allclose(tangent[0].numpy(), wanted, rtol=0, atol=1e-8 * np.abs(wanted).max())
    np.testing.assert_allclose(product[0, :, 0].numpy(), wanted.sum(1), rtol=0, atol=1e-7 * np.abs(wanted).max())


@pytest.mark.parametrize("d", [2, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivative_products_of_points_that_differ_in_an_input_that_does_not_matter(d: int, dtype: torch.dtype) -> None:
    """On a grid many pairs agree in all inputs but the last, whose lengthscale is 1e9. Their distance is 1e-9, the
    slope of Matern-1/2 is 5e8, and a difference in another input is 0: so is its product."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (N, d), generator=generator).to(dtype)
    kernel = gpytorch.kernels.MaternKernel(nu=0.5, ard_num_dims=d).to(dtype)
    kernel.lengthscale = torch.tensor([[*[0.5] * (d - 1), 1e9]], dtype=dtype)
    form, everything = read_kernel(kernel, x), slice(0, N)
    v = torch.randn(N, 3, generator=generator, dtype=dtype)
    ((_, found),) = form.derivatives(everything, everything, v)
    ((_, tangents),) = form.tangents(everything, everything)
    assert float(form.formula.slope(form._squared(everything, everything)).abs().max()) > 1e8
    wanted = tangents.double() @ v.double()
    for one, other in zip(found.double(), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-4 * max(float(other.abs().max()), 1e-8))
