"""Estimates of the negative log marginal likelihood and its gradient."""

from rtgp.objectives.cholesky import CholeskyObjective
from rtgp.objectives.fourier import FREQUENCIES, FourierObjective, FourierSettings
from rtgp.objectives.information import covers
from rtgp.objectives.krylov import KrylovObjective, KrylovSettings
from rtgp.objectives.krylov_run import Truncation
from rtgp.objectives.protocol import Batch, EstimateStats, Extras, LossEstimate, Objective
from rtgp.objectives.single_sample import SingleSampleObjective, SingleSampleSettings

__all__ = [
    "FREQUENCIES",
    "Batch",
    "CholeskyObjective",
    "EstimateStats",
    "Extras",
    "FourierObjective",
    "FourierSettings",
    "KrylovObjective",
    "KrylovSettings",
    "LossEstimate",
    "Objective",
    "SingleSampleObjective",
    "SingleSampleSettings",
    "Truncation",
    "covers",
]
