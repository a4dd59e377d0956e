"""One estimate of the objective: what optimisers decide by."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtgp._objectives import EstimateStats


@dataclass(frozen=True)
class Evaluation:
    """One estimate of the objective and its gradient, which is in the leaves' `.grad` too. There are p coordinates.

    Attributes
    ----------
    point : Tensor
        (p,): where it was computed, in the coordinates of training, float64 on the CPU.
    n : int
        Number of observations: data points, times the outputs that share the kernel.
    objective : float
        What is minimised, per point: priors and added loss terms included.
    loss : float
        Negative log marginal likelihood per point.
    gradient_norm : float
        The norm of the gradient.
    stats : EstimateStats
        Statistics of the estimate.
    gradient : Tensor
        (p,): of the objective in the coordinates of training, float64 on the CPU.
    contrast : Tensor or None
        (p,): of mean zero and the gradient's covariance (`LossEstimate`).
    information : Tensor or None
        (p, p): the average-information matrix and the priors' curvature, per point.
    """

    point: Tensor
    n: int
    objective: float
    loss: float
    gradient_norm: float
    stats: EstimateStats
    gradient: Tensor
    contrast: Tensor | None
    information: Tensor | None

    @property
    def objective_error(self) -> float:
        """Standard error of the objective per point; NaN where it is unknown."""
        return self.stats.value_error / self.n
