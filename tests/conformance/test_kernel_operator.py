"""One suite for the KernelOperator protocol; every implementation runs it, against NumPy in float64.

On the CPU, and under `-m gpu` on a card. The fused operator runs on the CPU in Triton's interpreter, where it is
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gpytorch
import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

import reference
import triton_mode
from rtgp._kernels import KernelForm, read_kernel
from rtgp.distributed import Group
from rtgp.errors import InputError
from rtgp.operators import (
    DenseOperator,
    KernelOperator,
    NearOperator,
    ShardedOperator,
    TiledOperator,
    TritonOperator,
)
from rtgp.operators._order import TileSettings

# Tiles of few points, and entries that count down to the rounding of float64.
SMALL, NOISE = TileSettings(leaf=4), 1e-8

TILE = 8  # small: n = 17 gives three tiles, the last of one point

# A new operator joins the suite by one line here.
OPERATORS: dict[str, Callable[[KernelForm, int], KernelOperator]] = {
    "dense": DenseOperator,
    "tiled": TiledOperator,
    "triton": TritonOperator,
    # On one process; tests/distributed has several.
    "sharded dense": lambda form, tile: ShardedOperator(form, tile, Group.alone(), "dense"),
    "sharded tiled": lambda form, tile: ShardedOperator(form, tile, Group.alone(), "tiled"),
    "near": lambda form, tile: NearOperator(form, tile, NOISE, settings=SMALL),
    "near stored": lambda form, tile: NearOperator(form, tile, NOISE, stored=True, settings=SMALL),
}
SINGLE = ("triton",)  # those that work in float32 alone

DIMENSIONS = 6
DEVICE = ["cpu"]  # where the tensors of the test that runs now are; set by `make`
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6}  # relative to the largest entry


@dataclass(frozen=True)
class Case:
    """A kernel and what the reference needs to know about it."""

    kind: str
    structure: str  # "ard", "isotropic", "active"

    @property
    def columns(self) -> list[int]:
        return [0, 2, 5] if self.structure == "active" else list(range(DIMENSIONS))

    def kernel(self, dtype: torch.dtype) -> gpytorch.kernels.ScaleKernel:
        ard = None if self.structure == "isotropic" else len(self.columns)
        options = {"ard_num_dims": ard, "active_dims": self.columns if self.structure == "active" else None}
        if self.kind == "rbf":
            base = gpytorch.kernels.RBFKernel(**options)
        else:
            base = gpytorch.kernels.MaternKernel(nu={"12": 0.5, "32": 1.5, "52": 2.5}[self.kind[-2:]], **options)
        kernel = gpytorch.kernels.ScaleKernel(base).to(DEVICE[0], dtype)
        base.lengthscale = 2.0 if ard is None else torch.linspace(1.0, 3.0, ard, device=DEVICE[0])
        kernel.outputscale = 2.5
        return kernel

    def matrix(self, kernel: gpytorch.kernels.ScaleKernel, x1: Tensor, x2: Tensor) -> np.ndarray:
        return reference.kernel_matrix(
            self.kind, array(x1)[:, self.columns], array(x2)[:, self.columns], *scales(kernel)
        )


CASES = [Case(kind, structure) for kind in reference.KINDS for structure in ("ard", "isotropic", "active")]


def array(x: Tensor) -> np.ndarray:
    return x.detach().double().cpu().numpy()


def scales(kernel: gpytorch.kernels.ScaleKernel) -> tuple[np.ndarray, float]:
    return array(kernel.base_kernel.lengthscale)[0], float(kernel.outputscale.detach())


def points(n: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(n, DIMENSIONS, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    if n > 4:
        x[-1] = x[1]  # duplicates, in tiles far apart and next to one another
        x[3] = x[2]
    return x.to(DEVICE[0], dtype)


def vectors(n: int, r: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(n, r, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE[0], dtype)


def assert_close(got: Tensor, wanted: np.ndarray, dtype: torch.dtype, factor: float = 1.0) -> None:
    scale = np.abs(wanted).max() if wanted.size else 0.0
    np.testing.assert_allclose(array(got), wanted, rtol=0, atol=factor * TOLERANCE[dtype] * scale)


@dataclass(frozen=True)
class Maker:
    """Makes one kind of operator on one device."""

    name: str
    device: str

    @property
    def dtype(self) -> torch.dtype:
        """The best precision the operator has, for what needs no other."""
        return torch.float32 if self.name in SINGLE else torch.float64

    def __call__(self, kernel: gpytorch.kernels.Kernel, x: Tensor, tile: int = TILE) -> KernelOperator:
        form = read_kernel(kernel, x)
        if self.name in SINGLE and form.dtype != torch.float32:
            pytest.skip("float32 only")
        return OPERATORS[self.name](form, tile)


def places() -> Iterator[ParameterSet]:
    for name in OPERATORS:
        if name != "triton" or triton_mode.INSTALLED:
            yield pytest.param(Maker(name, "cpu"), id=name)
        yield pytest.param(Maker(name, "cuda"), id=f"{name}-cuda", marks=[pytest.mark.gpu, triton_mode.needs_cuda])


@pytest.fixture(params=places())
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    maker: Maker = request.param
    if maker.name == "triton" and maker.device == "cpu" and triton_mode.CUDA:
        pytest.skip("Triton's interpreter is for machines without a card")
    DEVICE[0] = maker.device
    yield maker
    DEVICE[0] = "cpu"


dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
cases = pytest.mark.parametrize("case", CASES, ids=[f"{c.kind}-{c.structure}" for c in CASES])


@dtypes
@cases
def test_values(make: Maker, case: Case, dtype: torch.dtype) -> None:
    """Everything without a gradient, for every kernel."""
    x, x_new = points(17, dtype), points(11, dtype)
    kernel = case.kernel(dtype)
    operator = make(kernel, x)
    K, K_new = case.matrix(kernel, x, x), case.matrix(kernel, x_new, x)

    assert isinstance(operator, KernelOperator)
    assert operator.shape == (17, 17)
    assert operator.dtype == dtype
    assert operator.device == x.device
    v = vectors(17, 3, dtype)
    assert_close(operator.matmul(v), K @ array(v), dtype)
    assert_close(operator.diagonal(), np.diag(K), dtype)
    index = torch.tensor([16, 0, 5, 5])
    assert_close(operator.rows(index), K[index], dtype)

    cross = operator.cross(x_new)
    assert cross.shape == (11, 17)
    assert_close(cross.matmul(v), K_new @ array(v), dtype)
    w = vectors(11, 3, dtype)
    assert_close(cross.transposed_matmul(w), K_new.T @ array(w), dtype)
    assert_close(cross.to_dense(), K_new, dtype)


@dtypes
def test_renewed_it_is_what_a_new_one_is(make: Maker, dtype: torch.dtype) -> None:
    """In the same memory, of another kernel; another size or precision is refused."""
    case, x, v = Case("matern32", "ard"), points(17, dtype), vectors(17, 3, dtype)
    operator, kernel = make(case.kernel(dtype), x), case.kernel(dtype)
    for parameter in kernel.parameters():
        parameter.data += 0.3
    form = read_kernel(kernel, x)
    if operator.renew(form):
        new = make(kernel, x)
        assert torch.equal(operator.matmul(v), new.matmul(v))
        assert torch.equal(operator.diagonal(), new.diagonal())
        assert torch.equal(operator.bilinear(v, v), new.bilinear(v, v))
        assert operator.form is form
    else:
        assert make.name != "dense" or make.device == "cuda"
    assert not operator.renew(read_kernel(case.kernel(dtype), points(16, dtype)))
    other = torch.float32 if dtype == torch.float64 else torch.float64
    assert make.name in SINGLE or not operator.renew(read_kernel(case.kernel(other), points(17, other)))


@dtypes
@pytest.mark.parametrize("n", [1, 2, 8, 9, 17, 1023])
def test_sizes(make: Maker, n: int, dtype: torch.dtype) -> None:
    if n > 200 and make == Maker("triton", "cpu"):
        pytest.skip("half a minute in the interpreter")
    case = Case("matern32", "ard")
    kernel, x = case.kernel(dtype), points(n, dtype)
    operator = make(kernel, x, tile=100 if n > 100 else TILE)
    K, v = case.matrix(kernel, x, x), vectors(n, 11, dtype)
    assert_close(operator.matmul(v), K @ array(v), dtype)
    assert_close(operator.bilinear(v, v), np.sum(array(v) * (K @ array(v))), dtype)
    assert_close(operator.diagonal(), np.diag(K), dtype)
    assert_close(operator.cross(x[:1]).to_dense(), K[:1], dtype)


@dtypes
@pytest.mark.parametrize("r", [0, 1, 3, 8, 9, 11, 16, 17, 33, 63, 64, 70])
@pytest.mark.parametrize("contiguous", [True, False])
def test_numbers_of_columns(make: Maker, r: int, contiguous: bool, dtype: torch.dtype) -> None:
    case = Case("rbf", "ard")
    kernel, x = case.kernel(dtype), points(130, dtype)
    v = vectors(130, r, dtype)
    if not contiguous:
        v = v.T.contiguous().T
    kept = v.clone()
    result = make(kernel, x, tile=50).matmul(v)
    assert result.shape == (130, r)
    assert_close(result, case.matrix(kernel, x, x) @ array(v), dtype)
    assert torch.equal(v, kept)


def softplus_slope(raw: Tensor) -> np.ndarray:
    """d softplus(raw) / d raw: GPyTorch's positive parameters are softplus of what the optimiser moves."""
    return 1.0 / (1.0 + np.exp(-array(raw)))


def parameter_gradients(case: Case, kernel: gpytorch.kernels.ScaleKernel, x: Tensor, W: np.ndarray) -> list[np.ndarray]:
    """d sum(W * K) / d (raw_outputscale, raw_lengthscale), in their shapes."""
    by_outputscale, by_lengthscale = ((W * dK).sum((1, 2)) for dK in parameter_matrices(case, kernel, x))
    return [by_outputscale.reshape(()), by_lengthscale[None]]


def parameter_matrices(case: Case, kernel: gpytorch.kernels.ScaleKernel, x: Tensor) -> list[np.ndarray]:
    """dK for every element of (raw_outputscale, raw_lengthscale)."""
    z, (lengthscales, outputscale) = array(x)[:, case.columns], scales(kernel)
    wide = np.broadcast_to(lengthscales, len(case.columns))
    by_lengthscale = reference.kernel_lengthscale_derivatives(case.kind, z, wide, outputscale)
    if case.structure == "isotropic":
        by_lengthscale = by_lengthscale.sum(0, keepdims=True)
    by_outputscale = reference.kernel_matrix(case.kind, z, z, lengthscales)[None]
    slopes = softplus_slope(kernel.base_kernel.raw_lengthscale)[0][:, None, None]
    return [by_outputscale * softplus_slope(kernel.raw_outputscale), by_lengthscale * slopes]


def input_gradient(case: Case, kernel: gpytorch.kernels.ScaleKernel, x: Tensor, W: np.ndarray) -> np.ndarray:
    """d sum(W * K(x, x)) / dx for a symmetric W."""
    z, (lengthscales, outputscale) = array(x)[:, case.columns], scales(kernel)
    wide = np.broadcast_to(lengthscales, len(case.columns))
    derivative = reference.kernel_input_derivatives(case.kind, z, z, wide, outputscale)
    gradient = np.zeros(x.shape)
    gradient[:, case.columns] = 2.0 * np.einsum("ij,ijd->id", W, derivative)
    return gradient


@dtypes
@cases
@pytest.mark.parametrize("by", ["bilinear", "contract"])
def test_gradients(make: Maker, case: Case, by: str, dtype: torch.dtype) -> None:
    """sum_r u_r^T K v_r and its gradient with respect to every hyperparameter and to the inputs."""
    x = points(17, dtype).requires_grad_()
    kernel = case.kernel(dtype)
    operator = make(kernel, x)
    u, v = vectors(17, 5, dtype, seed=1), vectors(17, 5, dtype, seed=2)
    W = array(u) @ array(v).T
    W = (W + W.T) / 2
    if by == "bilinear":
        value = operator.bilinear(u, v)
    else:
        weight = torch.from_numpy(W).to(x)
        value = operator.contract(lambda rows, cols: weight[rows, cols])
    assert value.dtype == torch.float64
    assert value.shape == ()
    K = case.matrix(kernel, x, x)
    # What cancels in a sum of both signs is measured against the sum of its terms' sizes.
    np.testing.assert_allclose(
        float(value.detach()), np.sum(W * K), rtol=0, atol=TOLERANCE[dtype] * np.sum(np.abs(W * K))
    )

    value.backward()
    by_outputscale, by_lengthscale = parameter_gradients(case, kernel, x, W)
    assert_close(kernel.raw_outputscale.grad, by_outputscale, dtype, factor=10)
    assert_close(kernel.base_kernel.raw_lengthscale.grad, by_lengthscale, dtype, factor=10)
    assert_close(x.grad, input_gradient(case, kernel, x, W), dtype, factor=10)


@dtypes
@pytest.mark.parametrize("kind", reference.KINDS)
def test_deep_kernel(make: Maker, kind: str, dtype: torch.dtype) -> None:
    """Gradients reach the weights of a feature map in front of the kernel."""
    case = Case(kind, "ard")
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(23, 2, generator=generator, dtype=torch.float64).to(DEVICE[0], dtype)
    first = torch.randn(2, 7, generator=generator, dtype=torch.float64).to(DEVICE[0], dtype).requires_grad_()
    second = torch.randn(7, DIMENSIONS, generator=generator, dtype=torch.float64).to(DEVICE[0], dtype).requires_grad_()

    def features(a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(raw.to(a.dtype) @ a) @ b

    kernel = case.kernel(dtype)
    u, v = vectors(23, 4, dtype, seed=3), vectors(23, 4, dtype, seed=4)
    make(kernel, features(first, second)).bilinear(u, v).backward()

    weights = [w.detach().double().requires_grad_() for w in (first, second)]
    f = features(*weights)
    W = array(u) @ array(v).T
    f.backward(torch.from_numpy(input_gradient(case, kernel, f, (W + W.T) / 2)).to(f))
    for ours, theirs in zip((first, second), weights, strict=True):
        assert_close(ours.grad, array(theirs.grad), dtype, factor=10)


@dtypes
@cases
def test_derivative_matmul(make: Maker, case: Case, dtype: torch.dtype) -> None:
    kernel, x = case.kernel(dtype), points(17, dtype)
    operator = make(kernel, x)
    v = vectors(17, 3, dtype)
    parameters = operator.hyperparameters
    assert {id(p) for p in parameters} == {id(p) for p in kernel.parameters()}
    wanted = np.concatenate(parameter_matrices(case, kernel, x)) @ array(v)
    result = operator.derivative_matmul(v)
    assert result.shape == (sum(p.numel() for p in parameters), 17, 3)
    assert parameters[0] is kernel.raw_outputscale  # the order of the reference
    assert_close(result, wanted, dtype, factor=5)
    assert not result.requires_grad


def test_frozen_parameters_have_no_derivative(make: Maker) -> None:
    kernel = Case("rbf", "ard").kernel(make.dtype)
    v = vectors(17, 3, make.dtype)
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    operator = make(kernel, points(17, make.dtype))
    assert operator.derivative_matmul(v).shape == (1, 17, 3)
    operator.bilinear(v, v).backward()
    assert kernel.base_kernel.raw_lengthscale.grad is None
    assert kernel.raw_outputscale.grad is not None

    kernel.raw_outputscale.requires_grad_(False)
    operator = make(kernel, points(17, make.dtype))
    assert operator.hyperparameters == ()
    assert operator.derivative_matmul(v).shape == (0, 17, 3)
    assert not operator.bilinear(v, v).requires_grad


@pytest.mark.parametrize("kind", ["rbf", "matern12"])
def test_products_are_values_of_their_own(make: Maker, kind: str) -> None:
    """No autograd history, even for vectors that have one, and no view of what the operator holds."""
    case = Case(kind, "ard")
    kernel, x = case.kernel(make.dtype), points(17, make.dtype).requires_grad_()
    operator = make(kernel, x)
    K = case.matrix(kernel, x, x)
    v = vectors(17, 11, make.dtype).requires_grad_()
    cross = operator.cross(x[:3])
    index = torch.arange(17, device=make.device)

    def results() -> list[Tensor]:
        return [
            operator.matmul(v),
            operator.matmul(torch.eye(17, dtype=make.dtype, device=make.device)),
            operator.diagonal(),
            operator.rows(index),
            operator.derivative_matmul(v),
            cross.matmul(v),
            cross.transposed_matmul(v[:3]),
            cross.to_dense(),
        ]

    first = results()
    assert not any(result.requires_grad for result in first)
    operator.bilinear(v, v).backward()
    assert v.grad is None
    kept = [result.clone() for result in first]
    for result in first:
        result.fill_(torch.nan)
    for again, before in zip(results(), kept, strict=True):
        assert torch.equal(again, before)
    assert_close(operator.rows(index), K, make.dtype)


def test_bilinear_can_be_taken_twice(make: Maker) -> None:
    """Values of two calls add up, and one call's backward does not use up the other's."""
    kernel = Case("matern52", "ard").kernel(make.dtype)
    operator = make(kernel, points(17, make.dtype))
    u, v = vectors(17, 2, make.dtype, 1), vectors(17, 2, make.dtype, 2)
    operator.bilinear(u, v).backward(retain_graph=True)
    once = kernel.raw_outputscale.grad.clone()
    operator.bilinear(v, u).backward(retain_graph=True)
    torch.testing.assert_close(kernel.raw_outputscale.grad, 2 * once, rtol=TOLERANCE[make.dtype], atol=0)


@pytest.mark.parametrize("shape", [(17,), (16, 2), (17, 2, 2)])
def test_wrong_shapes_are_refused(make: Maker, shape: tuple[int, ...]) -> None:
    operator = make(Case("rbf", "ard").kernel(make.dtype), points(17, make.dtype))
    v = torch.ones(shape, dtype=make.dtype, device=make.device)
    for product in (operator.matmul, operator.derivative_matmul, operator.cross(points(3, make.dtype)).matmul):
        with pytest.raises(InputError, match=r"\(17, r\)"):
            product(v)
    with pytest.raises(InputError, match=r"\(17, r\)"):
        operator.bilinear(v, v)


def test_one_dimensional_inputs(make: Maker) -> None:
    """x (n,) is read as (n, 1), in the operator and in its cross products."""
    kernel = gpytorch.kernels.RBFKernel().to(make.device, make.dtype)
    x = torch.linspace(0, 1, 9, dtype=make.dtype, device=make.device)
    wanted = reference.kernel_matrix("rbf", array(x)[:3, None], array(x)[:, None], np.array([np.log(2.0)]))
    assert_close(make(kernel, x).cross(x[:3]).to_dense(), wanted, make.dtype)


@dtypes
def test_outputscale_far_from_one(make: Maker, dtype: torch.dtype) -> None:
    """The scale is kept apart: relative accuracy does not depend on it."""
    case = Case("matern52", "ard")
    for outputscale in (1e-12, 1e12):
        kernel, x = case.kernel(dtype), points(17, dtype)
        kernel.outputscale = outputscale
        v = vectors(17, 3, dtype)
        operator = make(kernel, x)
        K = case.matrix(kernel, x, x)
        assert_close(operator.matmul(v), K @ array(v), dtype)
        np.testing.assert_allclose(
            float(operator.bilinear(v, v).detach()), np.sum(array(v) * (K @ array(v))), rtol=1e-6
        )
