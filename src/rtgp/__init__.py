"""Gaussian processes learned without the bias of truncated solvers or random features."""

from rtgp import datasets, errors, operators, truncation
from rtgp.linear_algebra import logdet, solve
from rtgp.methods import CG, RRCG, Cholesky
from rtgp.mll import MarginalLogLikelihood
from rtgp.posterior import posterior
from rtgp.regressor import GPRegressor
from rtgp.solvers import PivotedCholesky
from rtgp.training import fit

__version__ = "0.1.0"

__all__ = [
    "CG",
    "RRCG",
    "Cholesky",
    "GPRegressor",
    "MarginalLogLikelihood",
    "PivotedCholesky",
    "__version__",
    "datasets",
    "errors",
    "fit",
    "logdet",
    "operators",
    "posterior",
    "solve",
    "truncation",
]
