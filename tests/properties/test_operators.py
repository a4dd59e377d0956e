"""Every operator is the matrix that it stands for: any kernel, any shape, any tile, both precisions."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import triton_mode
from properties.kernel_cases import is_stationary, kernel_trees, matrix
from properties.tries import examples
from rtgp._kernels import KernelForm, read_kernel
from rtgp._kernels.batches import small_blocks
from rtgp.distributed import Group
from rtgp.operators import DenseOperator, KernelOperator, ShardedOperator, TiledOperator, TritonOperator
from rtgp.operators._gpu import supported

# Relative to the largest entry. float32: products of up to 24 rounded entries, of which none cancels by design.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}


def points(n: int, d: int, dtype: torch.dtype, seed: int) -> Tensor:
    """With a repeated row, where there are rows enough."""
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if n > 3:
        x[-1] = x[1]
    return x.to(dtype)


def operators(form: KernelForm, tile: int) -> dict[str, KernelOperator]:
    made: dict[str, KernelOperator] = {
        "dense": DenseOperator(form, tile),
        "tiled": TiledOperator(form, tile),
        "sharded": ShardedOperator(form, tile, Group.alone(), "tiled"),
    }
    if triton_mode.INSTALLED and not triton_mode.CUDA and form.dtype == torch.float32 and supported(form) is None:
        made["triton"] = TritonOperator(form, tile)
    return made


def assert_close(got: Tensor, wanted: np.ndarray, dtype: torch.dtype, what: str) -> None:
    scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-300)
    np.testing.assert_allclose(
        got.detach().double().numpy(), wanted, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=what
    )


def wide(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


@st.composite
def problems(draw: st.DrawFn) -> tuple[Kernel, Tensor, int, int]:
    """(kernel, x (n, d), columns r of a right-hand side, tile)"""
    d = draw(st.integers(1, 6))  # from 5 on, distances are expanded squares
    n = draw(st.integers(1, 24))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    kernel = draw(kernel_trees(d)).to(dtype)
    return kernel, points(n, d, dtype, draw(st.integers(0, 99))), draw(st.integers(1, 5)), draw(st.integers(5, 30))


@given(problem=problems(), m=st.integers(1, 5))
@examples(40)
def test_operators_are_the_explicit_matrix(problem: tuple[Kernel, Tensor, int, int], m: int) -> None:
    kernel, x, r, tile = problem
    n, d = x.shape
    K = matrix(kernel, wide(x), wide(x))
    v, x_new = points(n, r, x.dtype, 7), points(m, d, x.dtype, 8)
    index = torch.arange(0, n, 2)
    for name, operator in operators(read_kernel(kernel, x), tile).items():
        assert operator.shape == (n, n)
        assert_close(operator.matmul(v), K @ wide(v), x.dtype, name)
        assert_close(operator.wide_matmul(v), K @ wide(v), x.dtype, name)
        assert_close(operator.diagonal(), np.diag(K), x.dtype, name)
        assert_close(operator.rows(index), K[index.numpy()], x.dtype, name)
        value = float(operator.bilinear(v, v.flip(0)).detach())
        terms = np.abs(wide(v) * (np.abs(K) @ np.abs(wide(v.flip(0))))).sum()
        assert abs(value - np.sum(wide(v) * (K @ wide(v.flip(0))))) <= TOLERANCE[x.dtype] * max(terms, 1e-300)
        assert_close(operator.cross(x_new).to_dense(), matrix(kernel, wide(x_new), wide(x)), x.dtype, name)


@given(problem=problems())
@examples(25)
def test_gradients_of_all_operators_are_those_of_autograd_over_gpytorch(
    problem: tuple[Kernel, Tensor, int, int],
) -> None:
    """`bilinear` in every hyperparameter and in the inputs; `derivative_matmul` against the same, column by column."""
    kernel, x, r, tile = problem
    kernel, x = copy.deepcopy(kernel).double(), x.double()
    u, v = points(len(x), r, x.dtype, 3), points(len(x), r, x.dtype, 4)

    def gradients(scalar: Tensor, inputs: Tensor) -> list[np.ndarray]:
        leaves = [*kernel.parameters(), inputs]
        found = torch.autograd.grad(scalar, leaves, allow_unused=True, retain_graph=True)
        return [np.zeros(one.shape) if g is None else g.numpy() for one, g in zip(leaves, found, strict=True)]

    # GPyTorch's own distances have no usable derivative in the inputs where two points are equal: these apart.
    inputs = (x + torch.linspace(0, 1e-2, len(x), dtype=torch.float64)[:, None]).requires_grad_(True)
    wanted = gradients((u * (kernel(inputs).to_dense() @ v)).sum(), inputs)
    scale = max(np.abs(one).max(initial=0.0) for one in wanted) + 1e-12
    for name, operator in operators(read_kernel(kernel, inputs), tile).items():
        for got, one in zip(gradients(operator.bilinear(u, v), inputs), wanted, strict=True):
            np.testing.assert_allclose(got, one, rtol=0, atol=1e-9 * scale, err_msg=name)
        products = operator.derivative_matmul(v)  # (p, n, r)
        known = {id(p): one.reshape(-1) for p, one in zip(kernel.parameters(), wanted, strict=False)}
        flat = np.concatenate([known[id(p)] for p in operator.hyperparameters])
        np.testing.assert_allclose((u * products).sum((1, 2)).numpy(), flat, rtol=0, atol=1e-9 * scale, err_msg=name)


@given(problem=problems(), seed=st.integers(0, 99))
@examples(25)
def test_small_blocks_are_blocks(problem: tuple[Kernel, Tensor, int, int], seed: int) -> None:
    kernel, x, _, _ = problem
    index = torch.randint(len(x), (4, min(3, len(x))), generator=torch.Generator().manual_seed(seed))
    K = matrix(kernel, wide(x), wide(x))
    found = small_blocks(read_kernel(kernel, x), index).detach()
    wanted = np.stack([K[np.ix_(row, row)] for row in index.numpy()])
    # Formulas of the library are in float64 whatever the inputs; others are GPyTorch's, in the inputs' precision.
    assert_close(found, wanted, torch.float64 if is_stationary(kernel) else x.dtype, "small blocks")


def test_the_check_can_fail() -> None:
    """Power: a lengthscale that is off by 1e-8 of itself does not pass."""
    kernel, x = ScaleKernel(RBFKernel()).double(), points(12, 2, torch.float64, 0)
    K = matrix(kernel, wide(x), wide(x))
    kernel.base_kernel.lengthscale = kernel.base_kernel.lengthscale * (1 + 1e-8)
    with pytest.raises(AssertionError):
        assert_close(TiledOperator(read_kernel(kernel, x), 5).rows(torch.arange(12)), K, torch.float64, "rows")
