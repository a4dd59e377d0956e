"""Estimates of the negative log marginal likelihood and its gradient."""

from rtgp.objectives.cholesky import CholeskyObjective
from rtgp.objectives.information import covers
from rtgp.objectives.krylov import KrylovObjective, KrylovSettings
from rtgp.objectives.krylov_run import Truncation
from rtgp.objectives.protocol import Batch, EstimateStats, Extras, LossEstimate, Objective

__all__ = [
    "Batch",
    "CholeskyObjective",
    "EstimateStats",
    "Extras",
    "KrylovObjective",
    "KrylovSettings",
    "LossEstimate",
    "Objective",
    "Truncation",
    "covers",
]
