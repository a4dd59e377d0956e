"""A second zoo: batches, several tasks, missing targets, covariances that come evaluated, and structured kernels.

An entry makes a model with its data, small enough that GPyTorch's own marginal likelihood is exact. Names of entries
are those of GPyTorch's documentation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from botorch.models import MultiTaskGP, SingleTaskGP
from gpytorch import kernels as k
from gpytorch import means
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import (
    DirichletClassificationLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    MultitaskGaussianLikelihood,
)
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.hadamard_gaussian_likelihood import HadamardGaussianLikelihood
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise
from gpytorch.priors import GammaPrior, LKJCovariancePrior, NormalPrior, SmoothedBoxPrior
from linear_operator.operators import DiagLinearOperator, RootLinearOperator
from torch import Tensor

N, D = 24, 2
TWO = torch.Size([2])


@dataclass(frozen=True)
class Animal:
    """A model with its data; what its likelihood is called with beside the output; the policy for missing targets; the
    learning rate of Adam. (BoTorch's parameters are not transformed: a large step goes beyond their bounds.)"""

    model: Any
    arguments: tuple[Tensor, ...] = ()
    policy: str = "ignore"
    rate: float = 0.05

    @property
    def likelihood(self) -> Any:
        return self.model.likelihood

    @property
    def y(self) -> Tensor:
        return self.model.train_targets

    def output(self) -> Any:
        return self.model(*self.model.train_inputs)

    @contextmanager
    def missing(self) -> Iterator[None]:
        with nullcontext() if self.policy == "ignore" else gpytorch.settings.observation_nan_policy(self.policy):
            yield

    def loss(self, mll: Any) -> Tensor:
        """That of a plain loop: the sum over a batch of models."""
        with self.missing():
            return -mll(self.output(), self.y, *self.arguments).sum()


ZOO: dict[str, Callable[[], Animal]] = {}


def animal(name: str) -> Callable[[Callable[[], Any]], None]:
    def add(make: Callable[[], Any]) -> None:
        ZOO[name] = make

    return add


def build(name: str, seed: int = 0) -> Animal:
    """In training mode and float64, from the same random numbers every time."""
    before, state = torch.get_default_dtype(), torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GPyTorch deprecates some of these kernels
            made = ZOO[name]()
        made = made if isinstance(made, Animal) else Animal(made)
        made.model.train(), made.likelihood.train()
        return made
    finally:
        torch.set_default_dtype(before)
        torch.set_rng_state(state)


def inputs(n: int = N, d: int = D) -> Tensor:
    return torch.rand(n, d)


def target(x: Tensor, phase: float = 0.0) -> Tensor:
    """(..., n) of inputs (..., n, d)."""
    return torch.sin(5.0 * x[..., 0] + phase) + x[..., -1] ** 2 + 0.1 * torch.randn(x.shape[:-1])


def tasks(x: Tensor, count: int = 2) -> Tensor:
    """(n, t)."""
    return torch.stack([target(x, 0.6 * task) for task in range(count)], -1)


class Model(gpytorch.models.ExactGP):
    """The model of GPyTorch's tutorials; `covariance` and `output` are what its users change in `forward`."""

    def __init__(
        self,
        x: Any,
        y: Tensor,
        kernel: Any,
        likelihood: Any = None,
        mean: Any = None,
        covariance: Callable[..., Any] | None = None,
        output: Callable[[Any, Any], Any] = MultivariateNormal,
    ) -> None:
        super().__init__(x, y, GaussianLikelihood() if likelihood is None else likelihood)
        self.mean_module = means.ConstantMean() if mean is None else mean
        self.covar_module = kernel
        self._covariance, self._output = covariance, output

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        if self._covariance is None:
            return self._output(self.mean_module(x), self.covar_module(x))
        return self._output(self.mean_module(x), self._covariance(self.covar_module, x, *others))


def single(kernel: Any, *, d: int = D, n: int = N, **parts: Any) -> Model:
    x = inputs(n, d)
    return Model(x, target(x), kernel, **parts)


# Batches of models.


def batch_of(kernel: Any, shared: bool = False, **parts: Any) -> Model:
    x = inputs() if shared else torch.rand(2, N, D)
    y = torch.stack([target(x, 0.0), target(x, 1.0)]) if shared else target(x)
    likelihood = parts.pop("likelihood", None) or GaussianLikelihood(batch_shape=TWO)
    return Model(x, y, kernel, likelihood, parts.pop("mean", None) or means.ConstantMean(batch_shape=TWO), **parts)


def scaled(base: Any, shape: torch.Size = TWO, **settings: Any) -> Any:
    return k.ScaleKernel(base, batch_shape=shape, **settings)


animal("batch of models")(lambda: batch_of(scaled(k.RBFKernel(ard_num_dims=D, batch_shape=TWO))))
animal("batch, shared points")(lambda: batch_of(scaled(k.MaternKernel(2.5, batch_shape=TWO)), shared=True))
animal("batch, kernel of its own kind")(lambda: batch_of(scaled(k.RQKernel(batch_shape=TWO)) + k.RBFKernel()))
animal("batch, linear mean and shared noise")(
    lambda: batch_of(
        scaled(k.RBFKernel(batch_shape=TWO)),
        mean=means.LinearMean(D, batch_shape=TWO),
        likelihood=GaussianLikelihood(),
    )
)
animal("batch with priors")(
    lambda: batch_of(
        scaled(
            k.MaternKernel(1.5, ard_num_dims=D, batch_shape=TWO, lengthscale_prior=GammaPrior(3.0, 6.0)),
            outputscale_prior=GammaPrior(2.0, 0.15),
        ),
        likelihood=GaussianLikelihood(batch_shape=TWO, noise_prior=GammaPrior(1.1, 0.05)),
        mean=means.ConstantMean(batch_shape=TWO, constant_prior=NormalPrior(0.0, 1.0)),
    )
)
animal("batch, known noise")(
    lambda: batch_of(
        scaled(k.RBFKernel(batch_shape=TWO)), likelihood=FixedNoiseGaussianLikelihood(0.01 + 0.1 * torch.rand(2, N))
    )
)


@animal("one model, batch of targets")
def _() -> Model:
    x = inputs()
    return Model(x.expand(3, N, D), torch.stack([target(x, phase) for phase in (0.0, 1.0, 2.0)]), k.RBFKernel())


@animal("batch of batches")
def _() -> Model:
    shape = torch.Size([2, 3])
    x = torch.rand(2, 3, N, D)
    kernel = scaled(k.RBFKernel(batch_shape=shape), shape)
    return Model(x, target(x), kernel, GaussianLikelihood(batch_shape=shape), means.ConstantMean(batch_shape=shape))


@animal("Dirichlet classification")
def _() -> Model:
    x = inputs()
    likelihood = DirichletClassificationLikelihood((3 * x[:, 0]).long(), learn_additional_noise=True)
    shape = torch.Size([3])
    kernel = scaled(k.RBFKernel(batch_shape=shape), shape)
    y = likelihood.transformed_targets.double()
    return Model(x, y, kernel, likelihood, means.ConstantMean(batch_shape=shape))


# Several tasks.


def multitask(kernel: Any, likelihood: Any = None, count: int = 2, n: int = 16, **parts: Any) -> Model:
    x = inputs(n)
    likelihood = MultitaskGaussianLikelihood(num_tasks=count) if likelihood is None else likelihood
    mean = means.MultitaskMean(means.ConstantMean(), num_tasks=count)
    return Model(x, tasks(x, count), kernel, likelihood, mean, output=MultitaskMultivariateNormal, **parts)


animal("multitask")(lambda: multitask(k.MultitaskKernel(k.RBFKernel(ard_num_dims=D), num_tasks=2, rank=1)))
animal("multitask, prior between tasks")(
    lambda: multitask(
        k.MultitaskKernel(
            k.MaternKernel(2.5), 2, 2, task_covar_prior=LKJCovariancePrior(2, 2.0, SmoothedBoxPrior(0.05, 3.0))
        )
    )
)
animal("multitask, one noise")(
    lambda: multitask(
        k.MultitaskKernel(k.RBFKernel(), num_tasks=3, rank=1),
        MultitaskGaussianLikelihood(num_tasks=3, has_task_noise=False),
        count=3,
        n=12,
    )
)
animal("multitask, noise by task")(
    lambda: multitask(
        k.MultitaskKernel(k.RBFKernel(), num_tasks=2, rank=1),
        MultitaskGaussianLikelihood(num_tasks=2, has_global_noise=False),
    )
)
animal("multitask, noise between tasks")(
    lambda: multitask(
        k.MultitaskKernel(k.RBFKernel(), num_tasks=3, rank=2), MultitaskGaussianLikelihood(3, rank=1), count=3, n=12
    )
)
animal("multitask, noise between tasks alone")(
    lambda: multitask(
        k.MultitaskKernel(k.RBFKernel(), num_tasks=2, rank=1),
        MultitaskGaussianLikelihood(2, rank=2, has_global_noise=False),
    )
)
animal("linear model of coregionalization")(
    lambda: multitask(k.LCMKernel([k.RBFKernel(), k.MaternKernel(1.5)], num_tasks=2, rank=1))
)
animal("values and derivatives")(
    lambda: multitask(
        k.ScaleKernel(k.RBFKernelGrad(ard_num_dims=2)), MultitaskGaussianLikelihood(num_tasks=3), count=3, n=12
    )
)


class Independent(gpytorch.models.ExactGP):
    """GPyTorch's "Multitask GP with independent outputs"."""

    def __init__(self, stacked: bool) -> None:
        x = inputs(16)
        super().__init__(x, tasks(x), MultitaskGaussianLikelihood(num_tasks=2))
        self.stacked = stacked
        self.mean_module = means.ConstantMean(batch_shape=TWO)
        self.covar_module = scaled(k.RBFKernel(batch_shape=TWO))
        self.others = torch.nn.ModuleList([k.RBFKernel(), k.MaternKernel(1.5)])

    def forward(self, x: Tensor) -> MultitaskMultivariateNormal:
        if self.stacked:
            return MultitaskMultivariateNormal.from_batch_mvn(
                MultivariateNormal(self.mean_module(x), self.covar_module(x))
            )
        mean = self.mean_module(x)
        parts = [MultivariateNormal(mean[i], kernel(x)) for i, kernel in enumerate(self.others)]
        return MultitaskMultivariateNormal.from_independent_mvns(parts)


animal("independent outputs")(lambda: Independent(True))
animal("independent outputs of different kernels")(lambda: Independent(False))


@animal("batch of multitask models")
def _() -> Model:
    x = torch.rand(2, 12, D)
    y = torch.stack([tasks(x[0]), tasks(x[1])])
    kernel = k.MultitaskKernel(k.RBFKernel(batch_shape=TWO), num_tasks=2)
    likelihood = MultitaskGaussianLikelihood(num_tasks=2, batch_shape=TWO)
    mean = means.MultitaskMean(means.ConstantMean(batch_shape=TWO), num_tasks=2)
    return Model(x, y, kernel, likelihood, mean, output=MultitaskMultivariateNormal)


class Hadamard(gpytorch.models.ExactGP):
    """GPyTorch's "Hadamard multitask GP": the model takes points and tasks."""

    def __init__(self, likelihood: Any) -> None:
        x = inputs()
        i = torch.randint(0, 2, (N, 1))
        super().__init__((x, i), target(x) + 0.5 * i[:, 0], likelihood)
        self.mean_module = means.ConstantMean()
        self.covar_module = k.RBFKernel(ard_num_dims=D)
        self.task_covar_module = k.IndexKernel(num_tasks=2, rank=1)

    def forward(self, x: Tensor, i: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x).mul(self.task_covar_module(i)))


animal("Hadamard multitask")(lambda: Hadamard(GaussianLikelihood()))


@animal("Hadamard multitask, noise by task")
def _() -> Animal:
    model = Hadamard(HadamardGaussianLikelihood(num_tasks=2))
    return Animal(model, (model.train_inputs[1],))


@animal("BoTorch, tasks")
def _() -> Animal:
    x = inputs()
    i = torch.randint(0, 2, (N, 1)).to(x)
    model = MultiTaskGP(torch.cat([x, i], 1), (target(x) + 0.5 * i[:, 0])[:, None], task_feature=-1)
    return Animal(model, (model.train_inputs[0],), rate=5e-5)


@animal("BoTorch, two outputs")
def _() -> Animal:
    x = inputs()
    return Animal(SingleTaskGP(x, tasks(x)), rate=5e-5)


# Missing targets.


@animal("missing targets")
def _() -> Animal:
    model = single(k.ScaleKernel(k.RBFKernel()))
    model.train_targets[[2, 7, 11]] = torch.nan
    return Animal(model, policy="mask")


@animal("missing targets of tasks")
def _() -> Animal:
    model = multitask(k.MultitaskKernel(k.RBFKernel(), num_tasks=2, rank=1))
    model.train_targets[[2, 7], [0, 1]] = torch.nan
    model.train_targets[5] = torch.nan
    return Animal(model, policy="mask")


@animal("missing targets in a batch")
def _() -> Animal:
    model = batch_of(
        scaled(k.RBFKernel(batch_shape=TWO)), likelihood=FixedNoiseGaussianLikelihood(0.01 + 0.1 * torch.rand(2, N))
    )
    model.train_targets[1, 4] = torch.nan
    return Animal(model, policy="mask")


# Covariances that come evaluated.

animal("product of kernel calls")(
    lambda: single(
        k.AdditiveKernel(k.RBFKernel(), k.MaternKernel(1.5)),
        covariance=lambda both, x: both.kernels[0](x).mul(both.kernels[1](x)),
    )
)
animal("evaluated covariance")(
    lambda: single(k.ScaleKernel(k.RBFKernel()), covariance=lambda own, x: own(x).to_dense())
)
animal("evaluated, with jitter")(
    lambda: single(
        k.ScaleKernel(k.RBFKernel()), covariance=lambda own, x: own(x).evaluate_kernel().add_jitter(1e-3) * 1.5
    )
)
animal("jitter")(lambda: single(k.ScaleKernel(k.RBFKernel()), covariance=lambda own, x: own(x).add_jitter(1e-2)))


class Warped(Model):
    """A diagonal that is learned, of a sum with a root."""

    def __init__(self) -> None:
        x = inputs()
        super().__init__(x, target(x), k.ScaleKernel(k.RBFKernel()))
        self.weights = torch.nn.Parameter(torch.randn(D, 3))
        self.extra = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> MultivariateNormal:
        linear, diagonal = RootLinearOperator(x @ self.weights), DiagLinearOperator(self.extra.exp() * x[:, 0])
        return MultivariateNormal(self.mean_module(x), self.covar_module(x) + linear + diagonal)


animal("kernel, root and diagonal")(Warped)


# Structured kernels.

animal("KISS-GP")(
    lambda: single(k.ScaleKernel(k.GridInterpolationKernel(k.RBFKernel(), grid_size=20, num_dims=1)), d=1)
)
animal("KISS-GP, two inputs")(
    lambda: single(k.ScaleKernel(k.GridInterpolationKernel(k.RBFKernel(), grid_size=12, num_dims=2)))
)
animal("KISS-GP and a linear kernel")(
    lambda: single(k.ScaleKernel(k.GridInterpolationKernel(k.RBFKernel(), 12, num_dims=2)) + k.LinearKernel())
)
animal("additive structure of KISS-GP")(
    lambda: single(
        k.AdditiveStructureKernel(k.ScaleKernel(k.GridInterpolationKernel(k.RBFKernel(), 20, num_dims=1)), num_dims=2)
    )
)
animal("product structure")(lambda: single(k.ProductStructureKernel(k.ScaleKernel(k.RBFKernel()), num_dims=2)))
animal("Newton-Girard")(lambda: single(k.NewtonGirardAdditiveKernel(k.RBFKernel(ard_num_dims=2), num_dims=2)))
animal("random Fourier features")(lambda: single(k.ScaleKernel(k.RFFKernel(num_samples=5, num_dims=2))))


@animal("grid kernel")
def _() -> Model:
    grid = [torch.linspace(0, 1, 5), torch.linspace(0, 1, 5)]
    x = gpytorch.utils.grid.create_data_from_grid(grid)
    return Model(x, target(x), k.GridKernel(k.RBFKernel(), grid=grid))


def sgpr(outside: bool) -> Model:
    x = inputs()
    likelihood = GaussianLikelihood()
    if outside:
        kernel = k.ScaleKernel(k.InducingPointKernel(k.RBFKernel(), x[:6].clone(), likelihood))
    else:
        kernel = k.InducingPointKernel(k.ScaleKernel(k.RBFKernel()), x[:6].clone(), likelihood)
    return Model(x, target(x), kernel, likelihood)


animal("SGPR")(lambda: sgpr(False))
animal("SGPR under a scale")(lambda: sgpr(True))


@animal("noise model")
def _() -> Animal:
    x = inputs()
    inner = Model(x, torch.full((N,), -3.0) + 0.3 * torch.randn(N), k.ScaleKernel(k.RBFKernel()))
    likelihood = _GaussianLikelihoodBase(HeteroskedasticNoise(inner))
    return Animal(Model(x, target(x), k.ScaleKernel(k.RBFKernel()), likelihood), (x,))
