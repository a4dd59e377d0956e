"""Predictions from the nearest training points alone: exact with all of them, and never too certain with fewer.

    mean(x) + k_c (K_cc + D_c)^-1 (y_c - mean_c),    k(x, x) - k_c (K_cc + D_c)^-1 k_c^T,    c: the nearest to x.

The variance given fewer points is larger: an upper bound of that given all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtgp._objectives.reading import check_model, check_one_output, own_data, refuse_several_outputs
from rtgp._preconditioners.nearest import nearest_among
from rtgp.errors import SettingError, UnsupportedModelError
from rtgp.posterior._marginal import MarginalPosterior
from rtgp.posterior._near_variance import conditional
from rtgp.posterior._prior import Prior


class NeighbourPosterior(MarginalPosterior):
    """Of an exact Gaussian process. Nothing is held: every call finds the neighbours of its points."""

    def __init__(self, model: Any, likelihood: Any, neighbours: int) -> None:
        check_model(model, likelihood, "rtgp.posterior(model, likelihood)")
        check_one_output(model, likelihood, "rtgp.posterior")
        if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 1:
            raise SettingError(
                f"The 'neighbours' parameter of posterior must be a positive integer. Got {neighbours!r} instead."
            )
        refuse_several_outputs(model, "predictions from neighbours")
        super().__init__(model, likelihood)
        self.neighbours = neighbours

    def release(self) -> None:
        """Nothing is held."""

    def _reference(self) -> Tensor:
        return own_data(self.model)[0]

    def _marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        prior = Prior.read(self.model, self.likelihood)
        if prior.form.dtype != torch.float64:
            prior = prior.in_float64(self.likelihood)
        n = prior.form.size
        training, count = torch.arange(n, device=prior.form.device), min(self.neighbours, n)
        means, variances = [], []
        for _, mean, form in prior.slabs(x):
            new = torch.arange(n, form.size, device=form.device)
            near = nearest_among(form, new, training, count)  # (m, count): all there, since count <= n
            added, variance = conditional(form, prior.noise, prior.residual, new, near)
            means.append(mean.double() + added)
            variances.append(variance)
        if not means:
            return x.new_zeros(0).double(), x.new_zeros(0).double()
        return torch.cat(means), torch.cat(variances)

    def _joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise UnsupportedModelError(
            "Predictions from neighbours have no joint covariance and no joint samples: each point has neighbours of "
            "its own. Use .mean and .variance (predict with return_std), or rtgp.posterior without 'neighbours'."
        )
