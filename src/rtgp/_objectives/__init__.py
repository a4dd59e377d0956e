"""Estimates of the negative log marginal likelihood and its gradient."""

from rtgp._objectives.cholesky import CholeskyObjective, CholeskySettings
from rtgp._objectives.fourier import FREQUENCIES, FourierObjective, FourierSettings
from rtgp._objectives.fourier_ladder import LadderSettings
from rtgp._objectives.information import covers
from rtgp._objectives.krylov import EstimateSettings, KrylovObjective, KrylovSettings
from rtgp._objectives.krylov_run import Truncation
from rtgp._objectives.outputs import SharedOutputs
from rtgp._objectives.protocol import Batch, EstimateRequest, EstimateStats, LossEstimate, Objective
from rtgp._objectives.single_sample import SingleSampleObjective, SingleSampleSettings

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
