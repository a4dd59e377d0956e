"""Covariances of several tasks, of batches, evaluated ones and structured ones, against what GPyTorch makes of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gpytorch import kernels as k
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.utils.grid import create_data_from_grid
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator, KroneckerProductLinearOperator, RootLinearOperator
from torch import Tensor

from rtgp._kernels import covariance as reading
from rtgp._kernels import read_covariance
from rtgp._kernels.form import KernelForm
from rtgp._kernels.positions import At
from rtgp._kernels.structured import is_structured, product, product_pullback
from rtgp.errors import UnsupportedModelError
from rtgp.operators import make_from_form

N, D = 9, 2
TWO = torch.Size([2])
ALL = slice(None)


@dataclass
class Case:
    module: torch.nn.Module
    covariance: Callable[[Any, Tensor], Any] = lambda kernel, x: kernel(x)
    at: tuple[int, ...] | None = None
    x: Callable[[], Tensor] = lambda: torch.rand(N, D)
    structured: bool = False
    informed: bool = False  # whether the derivative by every parameter is known


def independent(kernels: Any, x: Tensor) -> Any:
    parts = [MultivariateNormal(x.new_zeros(N), kernel(x)) for kernel in kernels.kernels]
    return MultitaskMultivariateNormal.from_independent_mvns(parts).lazy_covariance_matrix


def stacked(kernel: Any, x: Tensor) -> Any:
    batch = MultivariateNormal(x.new_zeros(2, N), kernel(x))
    return MultitaskMultivariateNormal.from_batch_mvn(batch).lazy_covariance_matrix


def batch(**base: Any) -> k.Kernel:
    return k.ScaleKernel(k.RBFKernel(batch_shape=TWO, **base), batch_shape=TWO)


def kiss(d: int = D) -> k.Kernel:
    return k.GridInterpolationKernel(k.RBFKernel(), grid_size=12, num_dims=d)


def inducing() -> k.Kernel:
    return k.InducingPointKernel(k.RBFKernel(ard_num_dims=D), torch.rand(4, D), GaussianLikelihood())


def kronecker(kernels: Any, x: Tensor) -> Any:
    first, second = kernels.kernels
    return KroneckerProductLinearOperator(first(x[:4]), second(x[4:7]), to_linear_operator(first.tasks @ first.tasks.T))


def with_tasks() -> k.Kernel:
    kernels = k.RBFKernel() + k.MaternKernel(1.5)
    kernels.kernels[0].register_parameter("tasks", torch.nn.Parameter(torch.randn(2, 2)))
    return kernels


GRID = [torch.linspace(0, 1, 3), torch.linspace(0, 1, 3)]
CASES: dict[str, Callable[[], Case]] = {
    "multitask": lambda: Case(k.MultitaskKernel(k.ScaleKernel(k.RBFKernel()), num_tasks=3, rank=2), informed=True),
    "coregionalization": lambda: Case(k.LCMKernel([k.RBFKernel(), k.MaternKernel(1.5)], 2, rank=1), informed=True),
    "kronecker": lambda: Case(with_tasks(), kronecker, informed=True),
    "first of a batch": lambda: Case(batch(ard_num_dims=D), at=(0,), informed=True),
    "second of a batch": lambda: Case(batch(ard_num_dims=D), at=(1,), informed=True),
    "of a batch of inputs": lambda: Case(batch(), at=(1,), x=lambda: torch.rand(2, N, D), informed=True),
    "of a batch, generic": lambda: Case(
        k.ScaleKernel(k.RQKernel(batch_shape=TWO), batch_shape=TWO) * k.MaternKernel(), at=(1,), informed=True
    ),
    "of a batch of multitask kernels": lambda: Case(
        k.MultitaskKernel(k.RBFKernel(), num_tasks=3), at=(0,), x=lambda: torch.rand(2, N, D), informed=True
    ),
    "of a batch, constants": lambda: Case(
        batch(), lambda kernel, x: kernel(x) * torch.tensor([2.0, 3.0])[:, None, None], at=(1,), informed=True
    ),
    "of a batch of KISS-GP": lambda: Case(
        kiss(), lambda kernel, x: kernel(x), at=(1,), x=lambda: torch.rand(2, N, D), structured=True
    ),
    "independent outputs": lambda: Case(k.RBFKernel() + k.MaternKernel(), independent, informed=True),
    "independent outputs of a batch": lambda: Case(batch(), stacked, informed=True),
    "derivatives": lambda: Case(k.ScaleKernel(k.RBFKernelGrad(ard_num_dims=D))),
    "product of calls": lambda: Case(
        k.RBFKernel() + k.MaternKernel(), lambda both, x: both.kernels[0](x) * both.kernels[1](x)
    ),
    "evaluated": lambda: Case(k.RBFKernel(), lambda kernel, x: to_linear_operator(kernel(x).to_dense())),
    "jitter": lambda: Case(k.RBFKernel(), lambda kernel, x: kernel(x).add_jitter(0.1), informed=True),
    "evaluated, jitter": lambda: Case(
        k.RBFKernel(), lambda kernel, x: 2.0 * kernel(x).evaluate_kernel().add_jitter(0.1)
    ),
    "root and diagonal": lambda: Case(
        k.RBFKernel(),
        lambda kernel, x: (
            RootLinearOperator(x / kernel.lengthscale) + DiagLinearOperator(x[:, 0] * kernel.lengthscale[0])
        ),
        structured=True,
    ),
    "KISS-GP": lambda: Case(kiss(), structured=True),
    "KISS-GP, scaled": lambda: Case(k.ScaleKernel(kiss()), structured=True),
    "KISS-GP of one input": lambda: Case(kiss(1), x=lambda: torch.rand(N, 1), structured=True),
    "KISS-GP and a kernel": lambda: Case(kiss() + k.LinearKernel()),
    "additive KISS-GP": lambda: Case(k.AdditiveStructureKernel(kiss(1), num_dims=D), structured=True),
    "product of KISS-GP": lambda: Case(k.ProductStructureKernel(kiss(1), num_dims=D)),
    "inducing points": lambda: Case(inducing(), structured=True),
    "inducing points, scaled": lambda: Case(k.ScaleKernel(inducing()), structured=True),
    "grid": lambda: Case(
        k.GridKernel(k.RBFKernel(), grid=GRID), x=lambda: create_data_from_grid(GRID).double(), structured=True
    ),
    "off the grid": lambda: Case(k.GridKernel(k.RBFKernel(ard_num_dims=D), grid=GRID), informed=True),
    "sum over a batch of batches": lambda: Case(
        k.RBFKernel(batch_shape=torch.Size([2, 3])), lambda kernel, x: kernel(x).sum(-3), at=(1,), informed=True
    ),
    "last dimension as a batch": lambda: Case(
        k.RBFKernel(), lambda kernel, x: kernel(x, last_dim_is_batch=True).sum(-3), structured=True
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Case, Tensor, KernelForm]:
    """With the dense matrix that GPyTorch makes, and the form that is read."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = CASES[request.param]()
        made.module.double()
        x = made.x().double()
        torch.set_rng_state(state)
        covariance = made.covariance(made.module, x)
        dense = covariance.to_dense()
        return (
            made,
            dense if made.at is None else dense[made.at],
            read_covariance(made.covariance(made.module, x), at=made.at),
        )


def gradients(scalar: Tensor, module: torch.nn.Module) -> list[Tensor]:
    parameters = list(module.parameters())
    found = torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def weights(size: int, columns: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if columns is not None:
        return torch.randn(size, columns, dtype=torch.float64, generator=generator)
    weight = torch.randn(size, size, dtype=torch.float64, generator=generator)
    return weight + weight.T


def attached(form: KernelForm, into: list[Tensor]) -> Tensor:
    return torch.stack([(t * g).sum() for t, g in zip(form.tensors, into, strict=True)]).sum()


def test_entries(case: tuple[Case, Tensor, KernelForm]) -> None:
    _, dense, form = case
    assert form.size == len(dense)
    torch.testing.assert_close(form.block(ALL, ALL), dense.detach())
    torch.testing.assert_close(form.diagonal(), dense.detach().diagonal())
    rows, cols = torch.tensor([3, 1, form.size - 1]), torch.tensor([0, 5])
    torch.testing.assert_close(form.block(rows, cols), dense.detach()[rows][:, cols])
    index = torch.tensor([[0, 3, 4], [8, 2, 1], [5, 6, 7]])
    torch.testing.assert_close(form.gathered(index), dense.detach()[index[:, :, None], index[:, None]])


def test_pullback(case: tuple[Case, Tensor, KernelForm]) -> None:
    own, dense, form = case
    weight, into = weights(form.size), form.zero_gradients()
    form.pullback(ALL, ALL, weight, into)
    wanted = gradients((weight * dense).sum(), own.module)
    for found, g in zip(gradients(attached(form, into), own.module), wanted, strict=True):
        torch.testing.assert_close(found, g)


def test_pullback_of_some_rows(case: tuple[Case, Tensor, KernelForm]) -> None:
    own, dense, form = case
    rows, cols = torch.tensor([3, 1, form.size - 1]), slice(2, 7)
    weight, into = weights(form.size)[:3, :5], form.zero_gradients()
    form.pullback(rows, cols, weight, into)
    wanted = gradients((weight * dense[rows][:, cols]).sum(), own.module)
    for found, g in zip(gradients(attached(form, into), own.module), wanted, strict=True):
        torch.testing.assert_close(found, g)


def test_derivatives_by_the_parameters(case: tuple[Case, Tensor, KernelForm]) -> None:
    own, dense, form = case
    names = {id(parameter): place for place, parameter in enumerate(own.module.parameters())}
    u, v = weights(form.size, 2), weights(form.size, 4)[:, 2:]
    wanted = gradients((u * (dense @ v)).sum(), own.module)
    found = [torch.zeros_like(g) for g in wanted]
    for parameter, product_ in form.derivatives(ALL, ALL, v):
        found[names[id(parameter)]] += (u * product_).sum((1, 2)).reshape(parameter.shape)
    for parameter in form.hyperparameters if not own.informed else own.module.parameters():
        torch.testing.assert_close(found[names[id(parameter)]], wanted[names[id(parameter)]])


def test_products_of_a_structure(case: tuple[Case, Tensor, KernelForm]) -> None:
    own, dense, form = case
    assert is_structured(form) == own.structured
    if not own.structured:
        return
    u, v, into = weights(form.size, 2), weights(form.size, 4)[:, 2:], form.zero_gradients()
    torch.testing.assert_close(product(form, v), dense.detach() @ v)
    product_pullback(form, u, v, into)
    wanted = gradients((u * (dense @ v)).sum(), own.module)
    for found, g in zip(gradients(attached(form, into), own.module), wanted, strict=True):
        torch.testing.assert_close(found, g)


def test_the_operator(case: tuple[Case, Tensor, KernelForm]) -> None:
    """Which is chosen by itself, and never stored where there is a structure."""
    own, dense, form = case
    operator = make_from_form(form)
    assert (type(operator).__name__ == "StructuredOperator") == own.structured
    u, v = weights(form.size, 2), weights(form.size, 4)[:, 2:]
    torch.testing.assert_close(operator.matmul(v), dense.detach() @ v)
    torch.testing.assert_close(operator.wide_matmul(v), dense.detach() @ v)
    total = operator.bilinear(u, v)
    torch.testing.assert_close(total.detach(), (u * (dense @ v)).sum().detach())
    wanted = gradients((u * (dense @ v)).sum(), own.module)
    for found, g in zip(gradients(total, own.module), wanted, strict=True):
        torch.testing.assert_close(found, g)


def test_some_of_the_rows(case: tuple[Case, Tensor, KernelForm]) -> None:
    """As where targets are missing."""
    _, dense, form = case
    index = torch.tensor([0, 2, 3, 7])
    torch.testing.assert_close(At(form, index).block(ALL, ALL), dense.detach()[index][:, index])
    torch.testing.assert_close(form.taken(index).block(ALL, ALL), dense.detach()[index][:, index])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_must_be_evaluated_whole_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "EVALUATED_UP_TO", N - 1)
    covariance = k.RBFKernel().double()(torch.rand(N, D).double(), last_dim_is_batch=True).sum(-3)
    with pytest.raises(
        UnsupportedModelError, match=r"RBFKernel on 9 rows, which must be evaluated whole, and is up to 8"
    ):
        read_covariance(covariance)
