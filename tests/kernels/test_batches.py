"""Many small covariance matrices at once: values and gradients against GPyTorch's own, set by set."""

from __future__ import annotations

import copy

import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from rtgp._kernels import read_covariance, read_kernel
from rtgp._kernels.batches import inputs_of, small_blocks
from rtgp.errors import UnsupportedModelError

KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
    "matern12": lambda: ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=3)),
    "matern32": lambda: MaternKernel(nu=1.5),
    "matern52": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2, active_dims=(0, 2))),
    "sum": lambda: ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(nu=1.5, active_dims=(1,))),
    "product": lambda: ScaleKernel(RBFKernel(active_dims=(0,)) * MaternKernel(nu=2.5, active_dims=(1,))),
    "generic": lambda: ScaleKernel(RQKernel()) + LinearKernel() + ScaleKernel(PeriodicKernel()),
}


def dense(kernel: Kernel, x: torch.Tensor) -> torch.Tensor:
    """Sums part by part: linear_operator factors a dense part, with jitter, to add a linear kernel to it."""
    if isinstance(kernel, AdditiveKernel):
        return sum(dense(part, x) for part in kernel.kernels)
    return kernel(x).to_dense()


def case(make: object) -> tuple[Kernel, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    x[7] = x[3]  # equal points, where a Matern kernel has no derivative
    index = torch.stack([torch.randperm(30, generator=generator)[:5] for _ in range(8)])
    index[0, :2] = torch.tensor([3, 7])
    weight = torch.randn(8, 5, 5, generator=generator, dtype=torch.float64)
    return make().double(), x, index, weight


@pytest.mark.parametrize("name", KERNELS)
def test_values_and_gradients_are_gpytorchs(name: str) -> None:
    kernel, x, index, weight = case(KERNELS[name])
    found = small_blocks(read_kernel(kernel, x), index)
    other = copy.deepcopy(kernel)
    expected = torch.stack([dense(other, x[rows]) for rows in index])
    # GPyTorch's distances between equal points are 1e-8, not 0.
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    for (label, one), two in zip(kernel.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=1e-6, msg=label)


def test_blocks_are_those_of_the_form() -> None:
    kernel, x, index, _ = case(KERNELS["matern12"])
    form = read_kernel(kernel, x)
    expected = torch.stack([form.block(rows, rows) for rows in index])
    torch.testing.assert_close(small_blocks(form, index), expected, rtol=1e-12, atol=1e-12)


def test_gradients_reach_the_inputs_of_a_deep_kernel() -> None:
    kernel, x, index, weight = case(KERNELS["rbf"])
    layer = torch.nn.Linear(3, 3).double()
    grads = []
    for dense in (False, True):
        layer.zero_grad()
        z = layer(x)
        blocks = torch.stack([kernel(z[rows]).to_dense() for rows in index]) if dense else None
        if blocks is None:
            blocks = small_blocks(read_covariance(kernel(z)), index)
        (blocks * weight).sum().backward()
        grads.append(layer.weight.grad.clone())
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-7, atol=1e-9)


def test_the_part_that_sees_most_inputs_says_who_is_near() -> None:
    kernel, x, _, _ = case(KERNELS["sum"])
    assert inputs_of(read_kernel(kernel, x)).shape == (30, 3)


def test_a_kernel_summed_over_a_batch_is_refused() -> None:
    _, x, index, _ = case(KERNELS["rbf"])
    kernel = RBFKernel(batch_shape=torch.Size([3])).double()
    form = read_covariance(kernel(x.mT.unsqueeze(-1)).sum(-3))
    with pytest.raises(UnsupportedModelError, match="summed over a batch"):
        small_blocks(form, index)
