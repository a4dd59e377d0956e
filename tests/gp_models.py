"""GPyTorch models and real data that several tests use."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, Mean
from torch import Tensor

import rtgp


def airports(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Elevation of n US airports from their position, standardised: X (n, 2), y (n,)."""
    data = rtgp.datasets.load("us-airports").subset(n, seed).standardised()
    return torch.tensor(data.X, dtype=dtype), torch.tensor(data.y, dtype=dtype)


class Model(gpytorch.models.ExactGP):
    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: gpytorch.likelihoods.Likelihood,
        kernel: Kernel | None = None,
        mean: Mean | None = None,
        covariance: Callable[[Model, Tensor], object] | None = None,
        features: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = ConstantMean() if mean is None else mean
        self.kernel = ScaleKernel(RBFKernel(ard_num_dims=x.shape[-1])) if kernel is None else kernel
        self.features = features
        self._covariance = covariance

    def forward(self, x: Tensor) -> MultivariateNormal:
        z = x if self.features is None else self.features(x)
        covariance = self.kernel(z) if self._covariance is None else self._covariance(self, z)
        return MultivariateNormal(self.mean_module(x), covariance)


def make(x: Tensor, y: Tensor, *, likelihood=None, **parts) -> Model:
    """A model in training mode, in the dtype of its data, away from GPyTorch's initial values."""
    model = Model(x, y, GaussianLikelihood() if likelihood is None else likelihood, **parts).to(x)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    return model.train()


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def exact(model: Model, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """GPyTorch's own value and gradients, by Cholesky."""
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    model.zero_grad()
    with gpytorch.settings.fast_computations(False, False, False):
        value = mll(model(model.train_inputs[0] if x is None else x), y)
        value.backward()
    return value.detach(), gradients(model)


def estimated(mll: rtgp.MarginalLogLikelihood, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    mll.model.zero_grad()
    value = mll(mll.model(mll.model.train_inputs[0] if x is None else x), y)
    value.backward()
    return value.detach(), gradients(mll.model)
