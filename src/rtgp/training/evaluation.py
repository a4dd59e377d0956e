"""One estimate of the objective: what optimisers decide by."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtgp.objectives import EstimateStats


@dataclass(frozen=True)
class Evaluation:
    """One estimate of the objective and its gradient (which is in the leaves' .grad). p: number of coordinates."""

    point: Tensor  # (p,): where it was computed, in the coordinates of training, float64 on the CPU
    n: int  # number of data points
    objective: float  # what is minimised, per point: priors and added loss terms included
    loss: float  # negative log marginal likelihood per point
    gradient_norm: float
    stats: EstimateStats
    gradient: Tensor  # (p,): of the objective in the coordinates of training, float64 on the CPU
    contrast: Tensor | None  # (p,): of mean zero and the gradient's covariance (`LossEstimate`)
    information: Tensor | None  # (p, p): the average-information matrix and the priors' curvature, per point

    @property
    def objective_error(self) -> float:
        """Standard error of the objective per point; NaN where it is unknown."""
        return self.stats.value_error / self.n
