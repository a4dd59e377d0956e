"""A zoo: models that people build with GPyTorch's and BoTorch's public classes, each with data of its own.

An entry is a function of a seed, which makes the data and the model from its own start. `refused` names those that
rtgp does not support: it must say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from botorch.models import (
    AdditiveMapSaasSingleTaskGP,
    MixedSingleTaskGP,
    MultiTaskGP,
    SingleTaskGP,
    SingleTaskMultiFidelityGP,
)
from botorch.models.additive_gp import OrthogonalAdditiveGP
from botorch.models.kernels import CategoricalKernel, InfiniteWidthBNNKernel
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP, add_saas_prior
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
from botorch.models.transforms import Bilog, ChainedOutcomeTransform, Log, Normalize, Standardize
from botorch.models.transforms.input import ChainedInputTransform, InputStandardize, Log10, Warp
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
    get_gaussian_likelihood_with_gamma_prior,
    get_matern_kernel_with_gamma_prior,
)
from botorch.utils.constraints import NonTransformedInterval
from gpytorch import kernels as k
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
)
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.priors import (
    GammaPrior,
    HalfCauchyPrior,
    LogNormalPrior,
    NormalPrior,
    SmoothedBoxPrior,
    UniformPrior,
)
from torch import Tensor

N, D = 210, 4


@dataclass(frozen=True)
class Animal:
    """A model and the data it holds."""

    model: Any
    X: Tensor
    y: Tensor

    @property
    def likelihood(self) -> Any:
        return self.model.likelihood


@dataclass(frozen=True)
class Species:
    build: Callable[[int], Any]
    quick: bool  # whether `make test` looks at it
    refused: bool  # whether rtgp says that it is not supported


ZOO: dict[str, Species] = {}


def species(name: str, quick: bool = False, refused: bool = False) -> Callable[[Callable[[int], Any]], None]:
    def add(build: Callable[[int], Any]) -> None:
        ZOO[name] = Species(build, quick, refused)

    return add


def build(name: str, seed: int) -> Animal:
    """The model in training mode with the data that it holds, as users pass them."""
    torch.manual_seed(seed)  # networks and random features draw from torch's default generator
    model = ZOO[name].build(seed)
    model.train()
    return Animal(model, model.train_inputs[0], model.train_targets)


def data(seed: int, n: int = N, d: int = D, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """X (n, d) in the unit cube, y (n,) of about unit variance; the last input does not matter."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    phase = torch.rand(3, generator=generator, dtype=torch.float64)
    f = torch.sin(6 * X[:, 0] + phase[0])
    if d > 1:
        f = f + (1 + phase[1]) * X[:, 1] ** 2
    if d > 2:
        f = f + 0.5 * torch.cos(8 * X[:, 2] + 3 * phase[2])
    y = f + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return X.to(dtype), ((y - y.mean()) / y.std()).to(dtype)


def units(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The same as BoTorch's users have it: X in units of its own, Y (n, 1) in others."""
    X, y = data(seed, dtype=dtype)
    return X * torch.tensor([1.0, 50.0, 1e3, 0.1], dtype=dtype) + 3.0, 40.0 * y[:, None] + 500.0


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, kernel: Any, likelihood: Any = None, mean: Any = None) -> None:
        super().__init__(x, y, GaussianLikelihood() if likelihood is None else likelihood)
        self.mean_module = ConstantMean() if mean is None else mean
        self.covar_module = kernel
        self.to(x)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def scaled(base: Any, **settings: Any) -> k.ScaleKernel:
    return k.ScaleKernel(base, **settings)


def exact(seed: int, kernel: Any, likelihood: Any = None, mean: Any = None, **sizes: Any) -> Exact:
    return Exact(*data(seed, **sizes), kernel, likelihood, mean)


# GPyTorch: kernels.

species("rbf", quick=True)(lambda s: exact(s, scaled(k.RBFKernel())))
species("rbf ard")(lambda s: exact(s, scaled(k.RBFKernel(ard_num_dims=D))))
species("rbf ard float32")(lambda s: exact(s, scaled(k.RBFKernel(ard_num_dims=D)), dtype=torch.float32))
species("matern 1/2")(lambda s: exact(s, scaled(k.MaternKernel(0.5, ard_num_dims=D))))
species("matern 3/2")(lambda s: exact(s, scaled(k.MaternKernel(1.5, ard_num_dims=D))))
species("matern 5/2, no outputscale")(lambda s: exact(s, k.MaternKernel(2.5, ard_num_dims=D)))
species("rational quadratic", quick=True)(lambda s: exact(s, scaled(k.RQKernel(ard_num_dims=D))))
species("periodic + rbf", quick=True)(lambda s: exact(s, scaled(k.PeriodicKernel()) + scaled(k.RBFKernel()), d=1))
species("periodic x rbf")(lambda s: exact(s, scaled(k.PeriodicKernel() * k.RBFKernel()), d=1))
species("cosine x rbf")(lambda s: exact(s, scaled(k.CosineKernel() * k.RBFKernel()), d=1))
species("linear")(lambda s: exact(s, scaled(k.LinearKernel(ard_num_dims=D))))
species("linear + rbf", quick=True)(lambda s: exact(s, k.LinearKernel() + scaled(k.RBFKernel(ard_num_dims=D))))
species("polynomial 2")(lambda s: exact(s, scaled(k.PolynomialKernel(power=2))))
species("polynomial 3 + rbf")(lambda s: exact(s, k.PolynomialKernel(power=3) + scaled(k.RBFKernel())))
species("piecewise polynomial")(lambda s: exact(s, scaled(k.PiecewisePolynomialKernel(q=2, ard_num_dims=D))))
species("constant + rbf")(lambda s: exact(s, k.ConstantKernel() + scaled(k.RBFKernel(ard_num_dims=D))))
species("random features")(lambda s: exact(s, scaled(k.RFFKernel(num_samples=50, num_dims=D))))


@species("spectral mixture")
def _(seed: int) -> Exact:
    X, y = data(seed, d=1)
    kernel = k.SpectralMixtureKernel(num_mixtures=3)
    kernel.initialize_from_data(X, y)
    return Exact(X, y, kernel)


@species("cylindrical")
def _(seed: int) -> Exact:
    X, y = data(seed)
    base = k.MaternKernel(2.5)
    return Exact((X - 0.5) / 1.1, y, scaled(k.CylindricalKernel(3, base)))


@species("arc")
def _(seed: int) -> Exact:
    X, y = data(seed)
    base = k.MaternKernel(2.5)
    return Exact(X, y, scaled(k.ArcKernel(base, angle_prior=GammaPrior(0.5, 1), ard_num_dims=D)))


@species("additive over inputs", quick=True)
def _(seed: int) -> Exact:
    parts = [scaled(k.RBFKernel(active_dims=[i])) for i in range(D)]
    return exact(seed, k.AdditiveKernel(*parts))


@species("hamming")
def _(seed: int) -> Exact:
    X, y = data(seed)
    words = torch.nn.functional.one_hot((3 * X).long(), 3).to(X)  # (n, letters, vocabulary)
    return Exact(words.flatten(1), y, scaled(k.HammingIMQKernel(vocab_size=3)))


@species("botorch, tasks")
def _(seed: int) -> MultiTaskGP:
    X, Y = units(seed)
    task = (torch.arange(N) % 2).to(X)[:, None]
    return MultiTaskGP(torch.cat([(X - 3.0) / X.max(0).values, task], 1), Y, task_feature=-1)


@species("index kernel")
def _(seed: int) -> Exact:
    X, y = data(seed)
    task = (3 * X[:, 3]).floor()
    kernel = scaled(k.RBFKernel(ard_num_dims=3, active_dims=[0, 1, 2]))
    index = k.IndexKernel(num_tasks=3, rank=1, active_dims=[3])
    return Exact(torch.cat([X[:, :3], task[:, None]], 1), y + 0.5 * task, kernel * index)


class Batched(Exact):
    """Additive structure, a batch of kernels summed."""

    def forward(self, x: Tensor) -> MultivariateNormal:
        covariance = self.covar_module(x.mT.unsqueeze(-1)).sum(-3)
        return MultivariateNormal(self.mean_module(x), covariance)


@species("batch of kernels, summed")
def _(seed: int) -> Exact:
    shape = torch.Size([D])
    return Batched(*data(seed), k.ScaleKernel(k.RBFKernel(batch_shape=shape), batch_shape=shape))


class Deep(Exact):
    def __init__(self, x: Tensor, y: Tensor, kernel: Any) -> None:
        super().__init__(x, y, kernel)
        self.network = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(x)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(self.network(x)))


species("deep kernel")(lambda s: Deep(*data(s, 80), scaled(k.RBFKernel())))


class TwoCalls(Exact):
    """One kernel for two pairs of inputs."""

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x[:, :2]) + self.covar_module(x[:, 2:]))


species("one kernel called twice")(lambda s: TwoCalls(*data(s), scaled(k.RBFKernel())))


@species("a kernel shared by two terms", quick=True)
def _(seed: int) -> Exact:
    base = k.RBFKernel(ard_num_dims=D)
    return exact(seed, scaled(base) + scaled(base * k.LinearKernel()))


@species("a parameter shared by two kernels")
def _(seed: int) -> Exact:
    one, two = k.RBFKernel(active_dims=[0, 1]), k.MaternKernel(1.5, active_dims=[2, 3])
    two.raw_lengthscale = one.raw_lengthscale
    return exact(seed, scaled(one) + scaled(two))


# GPyTorch: means, frozen parameters, noise.

species("zero mean")(lambda s: exact(s, scaled(k.RBFKernel()), mean=ZeroMean()))
species("linear mean", quick=True)(lambda s: exact(s, scaled(k.RBFKernel(ard_num_dims=D)), mean=LinearMean(D)))
species("constant mean with a prior")(
    lambda s: exact(s, scaled(k.RBFKernel()), mean=ConstantMean(constant_prior=NormalPrior(0.0, 0.1)))
)


@species("frozen lengthscale", quick=True)
def _(seed: int) -> Exact:
    model = exact(seed, scaled(k.RBFKernel(ard_num_dims=D)))
    model.covar_module.base_kernel.lengthscale = 0.5
    model.covar_module.base_kernel.raw_lengthscale.requires_grad_(False)
    return model


@species("frozen noise and mean")
def _(seed: int) -> Exact:
    model = exact(seed, scaled(k.MaternKernel(2.5)))
    model.likelihood.noise = 0.01
    model.likelihood.raw_noise.requires_grad_(False)
    model.mean_module.requires_grad_(False)
    return model


species("known noise", quick=True)(
    lambda s: exact(s, scaled(k.RBFKernel()), FixedNoiseGaussianLikelihood(torch.full((N,), 0.01)))
)
species("noise by point")(
    lambda s: exact(s, scaled(k.RBFKernel(ard_num_dims=D)), FixedNoiseGaussianLikelihood(torch.linspace(0.005, 0.1, N)))
)
species("known noise and more")(
    lambda s: exact(
        s, scaled(k.RBFKernel()), FixedNoiseGaussianLikelihood(torch.full((N,), 0.001), learn_additional_noise=True)
    )
)


@species("noise model")
def _(seed: int) -> Exact:
    X, y = data(seed)
    inner = Exact(X, torch.full_like(y, -4.0), scaled(k.RBFKernel()))
    return Exact(X, y, scaled(k.RBFKernel()), _GaussianLikelihoodBase(HeteroskedasticNoise(inner)))


# GPyTorch: constraints and priors.

species("lognormal priors")(
    lambda s: exact(
        s,
        scaled(k.RBFKernel(ard_num_dims=D, lengthscale_prior=LogNormalPrior(0.0, 1.0))),
        GaussianLikelihood(noise_prior=LogNormalPrior(-4.0, 1.0)),
    )
)
species("gamma priors")(
    lambda s: exact(
        s,
        scaled(
            k.MaternKernel(2.5, ard_num_dims=D, lengthscale_prior=GammaPrior(3.0, 6.0)),
            outputscale_prior=GammaPrior(2.0, 0.15),
        ),
        GaussianLikelihood(noise_prior=GammaPrior(1.1, 0.05)),
    )
)
species("uniform prior, start outside", quick=True)(
    lambda s: exact(s, scaled(k.RBFKernel(ard_num_dims=D, lengthscale_prior=UniformPrior(0.05, 0.6))))
)
species("half-cauchy and smoothed box")(
    lambda s: exact(
        s,
        scaled(
            k.RBFKernel(lengthscale_prior=SmoothedBoxPrior(0.1, 2.0, sigma=0.05)),
            outputscale_prior=HalfCauchyPrior(1.0),
        ),
    )
)
species("intervals", quick=True)(
    lambda s: exact(
        s,
        scaled(k.RBFKernel(ard_num_dims=D, lengthscale_constraint=Interval(0.05, 2.0))),
        GaussianLikelihood(noise_constraint=Interval(1e-4, 0.5)),
    )
)
species("intervals without a transform")(
    lambda s: exact(
        s,
        scaled(
            k.RBFKernel(ard_num_dims=D, lengthscale_constraint=NonTransformedInterval(0.05, 2.0, initial_value=0.5)),
            outputscale_constraint=NonTransformedInterval(0.1, 5.0, initial_value=5.0),  # it starts on its bound
        ),
        GaussianLikelihood(noise_constraint=GreaterThan(1e-4, transform=None, initial_value=1e-4)),
    )
)
species("positive without a transform", quick=True)(
    lambda s: exact(
        s,
        scaled(
            k.RQKernel(
                lengthscale_constraint=Positive(transform=None, initial_value=1.0),
                alpha_constraint=Positive(transform=None, initial_value=1.0),
            ),
            outputscale_constraint=Positive(transform=torch.exp, inv_transform=torch.log, initial_value=1.0),
        ),
        GaussianLikelihood(noise_constraint=Positive(transform=None, initial_value=0.2)),
    )
)
species("less than")(
    lambda s: exact(
        s,
        scaled(
            k.RBFKernel(
                lengthscale_constraint=LessThan(0.4, transform=None, initial_value=0.3),
                lengthscale_prior=LogNormalPrior(0.0, 1.0),
            )
        ),
    )
)


# BoTorch.

species("botorch, no transform", quick=True)(
    lambda s: SingleTaskGP(data(s)[0], data(s)[1][:, None], outcome_transform=None)
)
species("botorch, standardize")(lambda s: SingleTaskGP(data(s)[0], units(s)[1]))
species("botorch, normalize")(
    lambda s: SingleTaskGP(units(s)[0], data(s)[1][:, None], outcome_transform=None, input_transform=Normalize(D))
)
species("botorch, both transforms", quick=True)(
    lambda s: SingleTaskGP(*units(s), input_transform=Normalize(D), outcome_transform=Standardize(1))
)
species("botorch, both transforms, float32")(
    lambda s: SingleTaskGP(*units(s, torch.float32), input_transform=Normalize(D), outcome_transform=Standardize(1))
)
species("botorch, input standardize")(lambda s: SingleTaskGP(*units(s), input_transform=InputStandardize(D)))
species("botorch, log10 inputs")(
    lambda s: SingleTaskGP(
        *units(s),
        input_transform=ChainedInputTransform(log=Log10(indices=[1, 2]), norm=Normalize(D)),
    )
)


def _warp(d: int) -> Warp:
    prior = LogNormalPrior(0.0, 0.75**0.5)
    return Warp(d=d, indices=list(range(d)), concentration1_prior=prior, concentration0_prior=prior)


species("botorch, warped inputs", quick=True)(
    lambda s: SingleTaskGP(
        *units(s),
        input_transform=ChainedInputTransform(norm=Normalize(D), warp=_warp(D)),
        outcome_transform=Standardize(1),
    )
)
species("botorch, noise by point", quick=True)(
    lambda s: SingleTaskGP(
        *units(s), torch.linspace(5.0, 100.0, N, dtype=torch.float64)[:, None], input_transform=Normalize(D)
    )
)
species("botorch, known noise .01")(
    lambda s: SingleTaskGP(
        data(s)[0],
        data(s)[1][:, None],
        torch.full((N, 1), 0.01, dtype=torch.float64),
        covar_module=scaled(k.RBFKernel()),
        outcome_transform=None,
    )
)
species("botorch, log outcome")(
    lambda s: SingleTaskGP(
        units(s)[0],
        data(s)[1][:, None].exp(),
        outcome_transform=ChainedOutcomeTransform(log=Log(), standard=Standardize(1)),
        input_transform=Normalize(D),
    )
)
species("botorch, bilog outcome")(lambda s: SingleTaskGP(data(s)[0], data(s)[1][:, None], outcome_transform=Bilog()))
species("botorch, matern with gamma priors", quick=True)(
    lambda s: SingleTaskGP(
        *units(s),
        covar_module=get_matern_kernel_with_gamma_prior(D),
        likelihood=get_gaussian_likelihood_with_gamma_prior(),
        input_transform=Normalize(D),
    )
)
species("botorch, scaled matern with lognormal priors")(
    lambda s: SingleTaskGP(
        *units(s),
        covar_module=scaled(get_covar_module_with_dim_scaled_prior(D, use_rbf_kernel=False)),
        input_transform=Normalize(D),
    )
)
species("botorch, linear mean")(
    lambda s: SingleTaskGP(*units(s), mean_module=LinearMean(D), input_transform=Normalize(D))
)
species("botorch, infinite network")(
    lambda s: SingleTaskGP(*units(s), covar_module=InfiniteWidthBNNKernel(2), input_transform=Normalize(D))
)


def _categories(seed: int) -> tuple[Tensor, Tensor]:
    X, y = data(seed)
    category = (3 * X[:, 3]).floor()
    X[:, 3] = category
    return X, 40.0 * (y + 0.5 * category)[:, None]


species("botorch, mixed inputs")(lambda s: MixedSingleTaskGP(*_categories(s), cat_dims=[3]))
species("botorch, categorical kernel")(
    lambda s: SingleTaskGP(
        *_categories(s),
        covar_module=scaled(k.MaternKernel(2.5, ard_num_dims=3, active_dims=[0, 1, 2]))
        + scaled(CategoricalKernel(active_dims=[3])),
    )
)
species("botorch, fidelity")(lambda s: SingleTaskMultiFidelityGP(data(s)[0], units(s)[1], data_fidelities=[3]))
species("botorch, saas prior", quick=True)(
    lambda s: SingleTaskGP(
        *units(s),
        covar_module=scaled(add_saas_prior(k.MaternKernel(2.5, ard_num_dims=D))),
        input_transform=Normalize(D),
    )
)
species("botorch, additive saas")(lambda s: AdditiveMapSaasSingleTaskGP(*units(s), input_transform=Normalize(D)))
species("botorch, orthogonal additive")(lambda s: OrthogonalAdditiveGP(data(s)[0], units(s)[1]))
species("botorch, ensemble of saas")(lambda s: EnsembleMapSaasSingleTaskGP(*units(s), input_transform=Normalize(D)))
species("botorch, two outputs", quick=True)(
    lambda s: SingleTaskGP(data(s)[0], units(s)[1].expand(N, 2) + data(s)[0][:, :2])
)
species("botorch, relevance pursuit")(
    lambda s: RobustRelevancePursuitSingleTaskGP(*units(s), input_transform=Normalize(D))
)
