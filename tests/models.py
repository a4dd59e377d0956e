"""Small GPyTorch models that several tests share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gpytorch
import torch
from torch import Tensor

import rtgp
from rtgp import datasets
from rtgp._objectives import KrylovObjective
from rtgp._precision import PrecisionSettings


class Regression(gpytorch.models.ExactGP):
    """Constant mean, scaled RBF kernel with one lengthscale per input."""

    def __init__(self, x: Tensor, y: Tensor, noise_floor: float = 1e-6) -> None:
        constraint = gpytorch.constraints.GreaterThan(noise_floor)
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint))
        self.mean_module = gpytorch.means.ConstantMean()
        kernel = gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1])
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)
        self.to(x.dtype)
        self.train()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def set(self, lengthscale: float, outputscale: float, noise: float) -> Regression:
        self.covar_module.base_kernel.lengthscale = lengthscale
        self.covar_module.outputscale = outputscale
        self.likelihood.noise = noise
        return self


@dataclass(frozen=True)
class Judged(rtgp.RRCG):
    """RR-CG that decides on its precision by other settings."""

    precision: PrecisionSettings = field(default_factory=PrecisionSettings)

    def make_objective(self, frozen: bool = False) -> Any:
        made = super().make_objective(frozen)
        assert isinstance(made, KrylovObjective)
        internal = replace(made.settings.internal, precision=self.precision)
        return KrylovObjective(replace(made.settings, internal=internal), frozen)


def real_training_data(name: str, n: int, folder: Path, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The first n training rows of a named data set, standardised."""
    train = datasets.load(name, data_dir=folder).split(0)[0]
    return torch.tensor(train.X[:n], dtype=dtype), torch.tensor(train.y[:n], dtype=dtype)


def gradient(model: gpytorch.models.ExactGP, mll: gpytorch.mlls.MarginalLogLikelihood) -> tuple[Tensor, float]:
    """(gradient with respect to every parameter, float64, value) of one evaluation on the training data."""
    model.zero_grad()
    value = mll(model(*model.train_inputs), model.train_targets)
    value.backward()
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.reshape(-1).double() for part in parts]), float(value.detach())
