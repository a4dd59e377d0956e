"""How large the entries of a kernel matrix are, by a sample, beside all of them."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from rtgp._kernels import read_covariance
from rtgp._kernels.sample_statistics import size_of_entries


@pytest.mark.parametrize("lengthscale", [1e-4, 0.05, 0.5, 100.0])
@pytest.mark.parametrize("kernel", [RBFKernel, MaternKernel])
def test_by_a_sample_and_by_all(kernel: type, lengthscale: float) -> None:
    """From points that are all apart (the diagonal alone is left) to points that are all alike."""
    x = torch.rand(1500, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = ScaleKernel(kernel()).double()
    own.outputscale, own.base_kernel.lengthscale = 7.0, lengthscale
    form = read_covariance(own(x))
    k = form.block(torch.arange(1500), torch.arange(1500))
    exact = float(k.square().mean().sqrt() / k.diagonal().mean())
    # 128 points have 8,128 pairs: their mean is off by a few percent where few are near one another.
    assert size_of_entries(form) == pytest.approx(exact, rel=0.25)


def test_one_point() -> None:
    form = read_covariance(ScaleKernel(RBFKernel()).double()(torch.zeros(1, 2, dtype=torch.float64)))
    assert size_of_entries(form) == pytest.approx(1.0)
