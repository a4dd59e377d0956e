"""Many small blocks at once: the same numbers and gradients as block by block, for every kernel."""

from __future__ import annotations

import pytest
import torch
from gpytorch import kernels
from torch import Tensor

from kernels.test_gpytorch_kernels import MODELS, D, N
from rtgp._kernels import Generic, KernelForm, read_covariance, read_kernel

ROWS, K = 7, 5


@pytest.fixture
def x() -> Tensor:
    inputs = torch.rand(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs[-1] = inputs[2]
    return inputs


def sets(rows: int = ROWS) -> Tensor:
    """Each a set of K points; one holds a pair of equal points, one the same point many times."""
    generator = torch.Generator().manual_seed(3)
    index = torch.stack([torch.randperm(N, generator=generator)[:K] for _ in range(rows)])
    index[0, :2] = torch.tensor([N - 1, 2])  # equal points
    index[-1] = 4
    return index


def one_by_one(form: KernelForm, index: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    into = form.zero_gradients()
    for row, part in zip(index, weight, strict=True):
        form.pullback(row, row, part, into)
    return torch.stack([form.block(row, row) for row in index]), into


@pytest.mark.parametrize("way", ["alone", "blocks at hand", "together"])
@pytest.mark.parametrize("rows", [1, 3, ROWS])  # 3 is the size of a batch of kernels too
@pytest.mark.parametrize("name", MODELS)
def test_same_as_block_by_block(name: str, rows: int, way: str, x: Tensor) -> None:
    form = read_covariance(MODELS[name]()(x.requires_grad_()))
    index = sets(rows)
    weight = torch.randn(rows, K, K, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    weight[:, 0, 1] = weight[:, 1, 0] = 0.0  # where GPyTorch's derivative between equal points is arbitrary
    weight[-1] = torch.diag_embed(weight[-1].diagonal())
    blocks, wanted = one_by_one(form, index, weight)
    found = form.gathered(index)
    torch.testing.assert_close(found, blocks, rtol=1e-9, atol=4e-8)
    assert not found.requires_grad
    into = form.zero_gradients()
    if way == "together":
        again, pull = form.gathered_with_pullback(index)
        assert torch.equal(again, found)
        pull(weight, into)
        assert torch.equal(again, found)
    else:
        form.gathered_pullback(index, weight, into, found if way == "blocks at hand" else None)
    for one, two in zip(into, wanted, strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("columns", [2, 9])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_near_points_far_from_the_others_keep_their_digits(columns: int, nu: float) -> None:
    """A pair 1e-9 apart among points 1e3 lengthscales apart."""
    generator = torch.Generator().manual_seed(0)
    points = 1e3 * torch.randn(8, columns, generator=generator, dtype=torch.float64)
    points[1] = points[0] + 2.0**-30
    form = read_kernel(kernels.MaternKernel(nu=nu).double(), points.requires_grad_())
    index = torch.arange(8).expand(2, 8)
    exact = points[1].detach() - points[0].detach()
    distance = exact.norm() / float(form.lengthscale.detach())
    found = form.gathered(index)[0, 0, 1]
    scaled = (2 * nu) ** 0.5 * distance
    polynomial = {0.5: 1.0, 1.5: 1 + scaled, 2.5: 1 + scaled + scaled**2 / 3}[nu]
    torch.testing.assert_close(1 - found, 1 - polynomial * torch.exp(-scaled), rtol=1e-3, atol=2e-16)
    weight = torch.zeros(2, 8, 8, dtype=torch.float64)
    weight[0, 0, 1] = 1.0
    into = form.zero_gradients()
    form.gathered_pullback(index, weight, into)
    torch.testing.assert_close(into[0][0], -into[0][1])
    if nu == 0.5:  # a unit vector
        torch.testing.assert_close(into[0][0].norm(), torch.tensor(1.0, dtype=torch.float64), rtol=1e-3, atol=0)


def test_a_kernel_that_takes_no_batches_is_evaluated_block_by_block(x: Tensor) -> None:
    class Single(kernels.RBFKernel):
        def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
            found = super().forward(x1, x2, diag=diag, **params)
            return found if found.ndim <= 2 else found + found.flip(0)  # mixes the blocks

    form = read_kernel(Single().double(), x)
    assert isinstance(form, Generic)
    index = sets()
    weight = torch.ones(ROWS, K, K, dtype=torch.float64)
    blocks, wanted = one_by_one(form, index, weight)
    torch.testing.assert_close(form.gathered(index), blocks)
    into = form.zero_gradients()
    form.gathered_pullback(index, weight, into)
    torch.testing.assert_close(into, wanted)


def test_batches_are_evaluated_at_once_where_the_kernel_takes_them(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the two blocks that are compared."""
    for name in ("periodic", "additive structure", "sum over a batch of kernels", "spectral mixture"):
        form = read_covariance(MODELS[name]()(x))
        calls = []
        while not isinstance(form, Generic):
            form = form.form
        evaluate = form.evaluate.forward
        monkeypatch.setattr(form.evaluate, "forward", lambda *a, f=evaluate, c=calls: (c.append(1), f(*a))[1])
        form.gathered(sets())
        assert len(calls) == 3, name


def test_float32_blocks_and_weights(x: Tensor) -> None:
    kernel = (kernels.ScaleKernel(kernels.RBFKernel()) + kernels.PeriodicKernel()).double()
    wide, narrow = read_kernel(kernel, x), read_kernel(kernel, x, torch.float32)
    index = sets()
    weight = torch.randn(ROWS, K, K, generator=torch.Generator().manual_seed(4))
    found = narrow.gathered(index)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wide.gathered(index), rtol=1e-6, atol=1e-6)
    one, two = narrow.zero_gradients(), wide.zero_gradients()
    narrow.gathered_pullback(index, weight, one)
    wide.gathered_pullback(index, weight.double(), two)
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
