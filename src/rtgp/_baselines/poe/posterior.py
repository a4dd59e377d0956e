"""Predictions of a generalised product of experts (Deisenroth and Ng 2015, Eq. 11 and 12), weights 1 / K each.

    1 / variance = 1/K sum_k 1 / variance_k,    mean = variance 1/K sum_k mean_k / variance_k.

With weights that sum to one the product falls back to the prior far from the data. Where the experts are divided among
ranks, each rank asks its own, and one all-reduce adds up both sums.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rtgp._objectives.reading import held_inputs
from rtgp.distributed import checksum
from rtgp.errors import UnsupportedModelError
from rtgp.operators import group_for
from rtgp.posterior._marginal import MarginalPosterior
from rtgp.posterior._predict import Posterior
from rtgp.posterior._settings import PosteriorSettings

_LEAST = 1e-12  # of the largest variance: an expert that is certain must not divide by zero


class ExpertsPosterior(MarginalPosterior):
    """Predictions of an `ExpertsModel`.

    Each expert predicts as an exact Gaussian process. The product has marginals only.

    With operator="sharded" each rank keeps the factors of its own experts, and all ranks ask about the same points.
    """

    def __init__(self, model: Any, likelihood: Any, settings: PosteriorSettings) -> None:
        super().__init__(model, likelihood)
        self._group = group_for(settings.operator)
        own, settings = model.experts[self._group.own(len(model))], replace(settings, operator="auto")
        self._experts = [Posterior(expert, expert.likelihood, settings) for expert in own]

    def release(self) -> None:
        for expert in self._experts:
            expert.release()

    def _reference(self) -> Tensor:
        return held_inputs(self.model.experts[0])

    def _marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Ranks that ask about other points are found before their answers are added.
        self._group.gather_rows(x.new_empty(0), 0, checksum(x) + len(x))
        precision = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
        weighted = torch.zeros_like(precision)
        for expert in self._experts:
            variance = expert.variance(x).double()
            one = 1.0 / variance.clamp_min(_LEAST * float(variance.max()) + 1e-300)
            precision += one
            weighted += one * expert.mean(x).double()
        precision, weighted = self._group.sum_all([precision, weighted])
        return weighted / precision, len(self.model) / precision

    def _joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise UnsupportedModelError(
            "A product of experts has no joint covariance and no joint samples: the experts are multiplied at each "
            "point by itself. Use .mean and .variance (predict with return_std), or another method."
        )
