"""The model of POE: exact Gaussian processes, one for each subset of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from rtgp._baselines.poe.posterior import ExpertsPosterior
from rtgp.posterior import PosteriorSettings


class ExpertsModel(torch.nn.Module):
    """`experts` are ordinary GPyTorch models with their own data and hyperparameters."""

    def __init__(self, experts: Sequence[ExactGP]) -> None:
        super().__init__()
        self._experts = torch.nn.ModuleList(experts)

    def make_posterior(self, likelihood: Any, settings: PosteriorSettings) -> ExpertsPosterior:
        """Its predictions at new points."""
        return ExpertsPosterior(self, likelihood, settings)

    @property
    def experts(self) -> list[Any]:
        return list(self._experts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._experts)

    def __len__(self) -> int:
        return len(self._experts)

    @property
    def likelihood(self) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
        """The noise of the product, by the same rule as its variance: the inverse of the experts' mean precision."""
        first = self.experts[0].likelihood
        if isinstance(first, FixedNoiseGaussianLikelihood):
            return first
        noises = torch.stack([expert.likelihood.noise.detach().double().reshape(()) for expert in self])
        made = GaussianLikelihood(noise_constraint=Positive()).to(noises)
        made.noise = 1.0 / (1.0 / noises).mean()
        return made.eval().requires_grad_(False)

    @property
    def covar_module(self) -> torch.nn.ModuleList:
        """The experts' kernels."""
        return torch.nn.ModuleList([expert.covar_module for expert in self])


def disjoint_subsets(n: int, size: int, seed: int) -> Tensor:
    """All n points in a random order, cut into subsets (k, size); the last is filled up from the first."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    missing = -n % size
    return torch.cat([order, order[:missing]]).reshape(-1, size)
