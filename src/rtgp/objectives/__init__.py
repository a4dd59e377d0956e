"""Estimates of the negative log marginal likelihood and its gradient."""

from rtgp.objectives.cholesky import CholeskyObjective, CholeskySettings
from rtgp.objectives.fourier import FREQUENCIES, FourierObjective, FourierSettings
from rtgp.objectives.information import covers
from rtgp.objectives.krylov import EstimateSettings, KrylovObjective, KrylovSettings
from rtgp.objectives.krylov_run import Truncation
from rtgp.objectives.ladder import LadderSettings
from rtgp.objectives.outputs import SharedOutputs
from rtgp.objectives.protocol import Batch, EstimateRequest, EstimateStats, LossEstimate, Objective
from rtgp.objectives.single_sample import SingleSampleObjective, SingleSampleSettings

__all__ = [
    "FREQUENCIES",
    "Batch",
    "CholeskyObjective",
    "CholeskySettings",
    "EstimateRequest",
    "EstimateSettings",
    "EstimateStats",
    "FourierObjective",
    "FourierSettings",
    "KrylovObjective",
    "KrylovSettings",
    "LadderSettings",
    "LossEstimate",
    "Objective",
    "SharedOutputs",
    "SingleSampleObjective",
    "SingleSampleSettings",
    "Truncation",
    "covers",
]
