"""Bias and variance of the gradient estimates of a Gaussian process, in numbers and in words."""

from rtgp.diagnostics._diagnose import diagnose
from rtgp.diagnostics._result import Cost, Diagnosis, HyperparameterBias, ValueBias

__all__ = ["Cost", "Diagnosis", "HyperparameterBias", "ValueBias", "diagnose"]
