"""Every kernel a GPyTorch user would bring: the same K and the same gradient as GPyTorch evaluated densely."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch import kernels
from linear_operator.operators import LinearOperator
from torch import Tensor

from rtgp._kernels import Generic, Stationary, read_covariance, read_kernel
from rtgp.errors import InputError, RTGPError, UnsupportedModelError
from rtgp.operators import DenseOperator, KernelOperator, TiledOperator, make

N, D, TILE = 19, 4, 8

Covariance = Callable[[Tensor], LinearOperator]  # what a model's forward computes from its inputs


class Model(torch.nn.Module):
    """A covariance function and the parameters it uses, by name."""

    def __init__(
        self, covariance: Callable[..., LinearOperator], **parts: torch.nn.Module | torch.nn.Parameter
    ) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.names, self.covariance = tuple(parts), covariance
        generator = torch.Generator().manual_seed(5)
        self.double()
        for parameter in self.parameters():  # no two alike, none at a symmetric point
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)

    def forward(self, x: Tensor) -> LinearOperator:
        return self.covariance(x, *(getattr(self, name) for name in self.names))


def called(kernel: kernels.Kernel) -> Model:
    return Model(lambda x, k: k(x), kernel=kernel)


def _frozen(kernel: kernels.Kernel) -> kernels.Kernel:
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    return kernel


def _spectral_mixture() -> kernels.Kernel:
    return kernels.SpectralMixtureKernel(num_mixtures=3, ard_num_dims=D)


def _twice(kernel: kernels.Kernel) -> kernels.Kernel:
    return kernels.ScaleKernel(kernel) + kernels.ScaleKernel(kernel) * kernel


class _Subclass(kernels.RBFKernel):
    """Not what its parent computes: it must not be taken for an RBF kernel."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        return super().forward(x1, x2, diag=diag, **params) ** 2 + 0.5


rbf, matern, scaled = kernels.RBFKernel, kernels.MaternKernel, kernels.ScaleKernel

MODELS: dict[str, Callable[[], Model]] = {
    "rbf": lambda: called(rbf(ard_num_dims=D)),
    "matern": lambda: called(scaled(matern(nu=1.5, ard_num_dims=D))),
    "periodic": lambda: called(scaled(kernels.PeriodicKernel())),
    "periodic ard": lambda: called(kernels.PeriodicKernel(ard_num_dims=D)),
    "rational quadratic": lambda: called(scaled(kernels.RQKernel(ard_num_dims=D))),
    "linear": lambda: called(scaled(kernels.LinearKernel())),
    "linear ard": lambda: called(kernels.LinearKernel(ard_num_dims=D)),
    "polynomial": lambda: called(kernels.PolynomialKernel(power=3)),
    "cosine": lambda: called(kernels.CosineKernel()),
    "constant": lambda: called(kernels.ConstantKernel() + rbf()),
    "spectral mixture": lambda: called(_spectral_mixture()),
    "piecewise polynomial": lambda: called(scaled(kernels.PiecewisePolynomialKernel(q=2, ard_num_dims=D))),
    "subclass": lambda: called(scaled(_Subclass())),
    "sum": lambda: called(scaled(rbf(ard_num_dims=D)) + scaled(matern(nu=0.5))),
    "product": lambda: called(scaled(rbf(ard_num_dims=D)) * kernels.PeriodicKernel()),
    "three factors": lambda: called(rbf() * matern(nu=2.5, ard_num_dims=D) * kernels.LinearKernel()),
    "sum of products": lambda: called(scaled(rbf() * kernels.PeriodicKernel() + kernels.LinearKernel()) + matern()),
    "nested scale": lambda: called(scaled(scaled(scaled(matern(nu=2.5))))),
    "scaled sum": lambda: called(scaled(rbf() + kernels.LinearKernel())),
    "active_dims": lambda: called(scaled(rbf(active_dims=[2], ard_num_dims=1))),
    "active_dims of the scale": lambda: called(scaled(rbf(ard_num_dims=2), active_dims=[3, 1])),
    "active_dims in a sum": lambda: called(scaled(rbf(active_dims=[0, 3])) + kernels.PeriodicKernel(active_dims=[1])),
    "active_dims in a product": lambda: called(scaled(rbf(active_dims=[3, 0]) * kernels.LinearKernel(active_dims=[1]))),
    "active_dims within active_dims": lambda: called(
        scaled(rbf(active_dims=[1]) + kernels.PeriodicKernel(active_dims=[0]), active_dims=[3, 2])
    ),
    "same object twice": lambda: called(_twice(rbf(ard_num_dims=D))),
    "same generic object twice": lambda: called(_twice(kernels.PeriodicKernel())),
    "square": lambda: Model(lambda x, k: (k * k)(x), k=rbf()),
    "frozen": lambda: called(_frozen(scaled(rbf())) + kernels.PeriodicKernel()),
    "frozen generic": lambda: called(_frozen(scaled(kernels.RQKernel())) + rbf()),
    "constant multiple": lambda: Model(lambda x, k: 2.0 * k(x), k=scaled(rbf())),
    "constant multiples, summed": lambda: Model(
        lambda x, a, b: (a(x) * 0.5 + b(x) / 4.0) * 3.0, a=rbf(), b=kernels.PeriodicKernel()
    ),
    "trainable multiple": lambda: Model(
        lambda x, k, c: c.exp() * k(x) + k(x), k=rbf(), c=torch.nn.Parameter(torch.tensor(0.3))
    ),
    "sum of calls": lambda: Model(
        lambda x, a, b: a(x) + b(x[:, 1:3]) + a(x.square()), a=rbf(), b=scaled(kernels.RQKernel())
    ),
    "additive structure": lambda: Model(
        lambda x, k: k(x.mT.unsqueeze(-1)).sum(-3), k=scaled(rbf(batch_shape=torch.Size([D])), batch_shape=[D])
    ),
    "additive structure, plus": lambda: Model(
        lambda x, k, b: 2.0 * k(x.mT.unsqueeze(-1)).sum(dim=-3) + b(x),
        k=matern(nu=1.5, batch_shape=torch.Size([D])),
        b=rbf(),
    ),
    "sum over a batch of kernels": lambda: Model(
        lambda x, k: k(x).sum(-3), k=scaled(rbf(batch_shape=torch.Size([3])), batch_shape=torch.Size([3]))
    ),
    "deep": lambda: Model(
        lambda x, k, net: k(torch.tanh(net(x))), k=scaled(rbf(ard_num_dims=3)), net=torch.nn.Linear(D, 3)
    ),
    "deep generic": lambda: Model(
        lambda x, k, net: k(torch.tanh(net(x))), k=kernels.PeriodicKernel(), net=torch.nn.Linear(D, 3)
    ),
    "deep product": lambda: Model(
        lambda x, k, net: k(torch.tanh(net(x))), k=rbf() * kernels.RQKernel(), net=torch.nn.Linear(D, 3)
    ),
}

# Additive structure wants one slice for each input: new points would have to come in that shape.
NO_CROSS = {"additive structure", "additive structure, plus", "sum of calls", "deep", "deep generic", "deep product"}


@pytest.fixture
def x() -> Tensor:
    inputs = torch.rand(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs[-1] = inputs[2]
    return inputs


@pytest.fixture(params=["dense", "tiled"])
def operator_type(request: pytest.FixtureRequest) -> Callable[..., KernelOperator]:
    return {"dense": DenseOperator, "tiled": TiledOperator}[request.param]


def gradients(value: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(value, tensors, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found, strict=True)]


@pytest.mark.parametrize("name", MODELS)
def test_same_as_gpytorch(name: str, x: Tensor, operator_type: Callable[..., KernelOperator]) -> None:
    model = MODELS[name]()
    x = x.requires_grad_()
    with gpytorch.settings.trace_mode(True):  # GPyTorch's own closed forms do not differentiate in x
        K = model(x).to_dense()
    operator = operator_type(read_covariance(model(x)), TILE)

    identity = torch.eye(N, dtype=torch.float64)
    close = {"rtol": 1e-9, "atol": 4e-8}  # GPyTorch takes squared distances below 1e-15 for 1e-15
    torch.testing.assert_close(operator.matmul(identity), K.detach(), **close)
    torch.testing.assert_close(operator.diagonal(), K.detach().diagonal(), **close)
    torch.testing.assert_close(operator.rows(torch.tensor([18, 3])), K.detach()[[18, 3]], **close)

    generator = torch.Generator().manual_seed(2)
    u, v = torch.randn(2, N, 3, generator=generator, dtype=torch.float64)
    # A duplicate is where GPyTorch's clamped distances have an arbitrary derivative in x: leave that pair out.
    trainable = [p for p in model.parameters() if p.requires_grad]
    u[-1] = v[-1] = 0.0
    value = operator.bilinear(u, v)
    wanted = (u * (K @ v)).sum()
    torch.testing.assert_close(value.detach(), wanted.detach(), **close)
    for ours, theirs in zip(gradients(value, [*trainable, x]), gradients(wanted, [*trainable, x]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_derivative_products(name: str, x: Tensor, operator_type: Callable[..., KernelOperator]) -> None:
    """u^T (dK_a v) is the a-th entry of the gradient of u^T K v."""
    model = MODELS[name]()
    operator = operator_type(read_covariance(model(x)), TILE)
    u, v = torch.randn(2, N, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    parameters = operator.hyperparameters
    assert len({id(p) for p in parameters}) == len(parameters)
    assert all(p.requires_grad for p in parameters)
    wanted = torch.cat([g.reshape(-1) for g in gradients(operator.bilinear(u, v), list(parameters))])
    products = operator.derivative_matmul(v)  # (p, n, 1)
    torch.testing.assert_close((products * u).sum((1, 2)), wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.filterwarnings("ignore:A not p.d.")  # GPyTorch factorises RBF + linear when it evaluates it
@pytest.mark.parametrize("name", [name for name in MODELS if name not in NO_CROSS])
def test_cross_covariance(name: str, x: Tensor, operator_type: Callable[..., KernelOperator]) -> None:
    model = MODELS[name]()
    x_new = torch.rand(5, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    wanted = model(torch.cat([x, x_new])).to_dense().detach()[N:, :N]
    cross = operator_type(read_covariance(model(x)), TILE).cross(x_new)
    torch.testing.assert_close(cross.to_dense(), wanted, rtol=1e-9, atol=1e-10)


def test_read_kernel_is_read_covariance(x: Tensor) -> None:
    """`make(kernel, X)` and the covariance of a model give the same matrix."""
    for name in ("active_dims in a product", "active_dims within active_dims", "active_dims of the scale"):
        model = MODELS[name]()
        everything = slice(0, N)
        torch.testing.assert_close(
            read_kernel(model.kernel, x).block(everything, everything),
            read_covariance(model(x)).block(everything, everything),
        )


def test_closed_forms_are_recognised(x: Tensor) -> None:
    form = read_kernel(scaled(rbf(ard_num_dims=D) + matern()).double(), x)
    assert all(isinstance(part, Stationary) for part in form.form.forms)
    assert isinstance(read_kernel(_Subclass().double(), x), Generic)


def test_params_of_the_call_are_kept(x: Tensor) -> None:
    """A keyword given to kernel(x, ...) reaches the kernel's forward."""

    class Tempered(kernels.RBFKernel):
        def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, power: float = 1.0, **params: object) -> Tensor:
            return super().forward(x1, x2, diag=diag, **params) ** power

    kernel = Tempered().double()
    everything = slice(0, N)
    wanted = kernel(x).to_dense().detach() ** 3
    torch.testing.assert_close(read_covariance(kernel(x, power=3.0)).block(everything, everything), wanted)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # within GPyTorch's IndexKernel
def test_category_index_as_input() -> None:
    """Integer inputs (IndexKernel's tasks, categories) do not make K an integer matrix."""
    index = torch.tensor([[0], [1], [1], [0], [2]])
    kernel = kernels.IndexKernel(num_tasks=3, rank=1).double()
    form = read_covariance(kernel(index))
    assert form.dtype == torch.float64
    torch.testing.assert_close(form.block(slice(0, 5), slice(0, 5)), kernel(index).to_dense().detach())
    assert make(rbf(), torch.arange(5)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_working_precision_may_differ_from_the_inputs(x: Tensor, dtype: torch.dtype) -> None:
    kernel = (scaled(rbf()) + kernels.PeriodicKernel()).double()
    operator = make(kernel, x, "dense", dtype=dtype)
    v = torch.ones(N, 2, dtype=dtype)
    assert operator.matmul(v).dtype == operator.diagonal().dtype == dtype
    operator.bilinear(v, v).backward()
    assert kernel.kernels[0].raw_outputscale.grad.dtype == torch.float64


REFUSED: dict[str, tuple[Callable[[Tensor], LinearOperator | Tensor], str]] = {
    "batch of kernels": (
        lambda x: rbf(batch_shape=torch.Size([2])).double()(x),
        r"Got a batch of them, of shape \(2,\)",
    ),
    "batch of inputs": (lambda x: rbf().double()(x.expand(3, N, D)), r"Got a batch of them, of shape \(3,\)"),
    "two sets of points": (lambda x: rbf().double()(x, x[:5]), r"K\(X, X\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_remedy(name: str, x: Tensor) -> None:
    covariance, remedy = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=remedy):
        read_covariance(covariance(x))


@pytest.mark.parametrize(
    "kernel, inputs, words",
    [
        (rbf(), torch.full((3, 2), torch.nan), "NaN"),
        (rbf(), torch.tensor([[0.0], [torch.inf]]), "infinity"),
        (rbf(), torch.zeros(2, 3, 4), "shape"),
        (rbf(), torch.zeros(0, 3), "n > 0"),
        (rbf(), [[1.0]], "torch.Tensor"),
        (rbf(ard_num_dims=3), torch.zeros(4), "ard_num_dims=3"),  # would broadcast
        (rbf(ard_num_dims=3), torch.zeros(4, 2), "ard_num_dims=3"),
        (rbf(batch_shape=torch.Size([1])), torch.zeros(4, 2), "batch shape"),
        ("rbf", torch.zeros(4, 2), "gpytorch.kernels.Kernel"),
    ],
)
def test_bad_input(kernel: kernels.Kernel, inputs: Tensor, words: str) -> None:
    with pytest.raises(RTGPError, match=words):
        make(kernel, inputs)


def test_bad_input_is_an_input_error() -> None:
    with pytest.raises(InputError):
        make(rbf(), torch.full((3, 2), torch.nan))
