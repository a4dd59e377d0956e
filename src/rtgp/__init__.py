"""Gaussian processes learned without the bias of truncated solvers or random features."""

from typing import TYPE_CHECKING, Any

from rtgp import datasets, distributed, errors, operators, truncation
from rtgp.baselines import POE, SGGP, SVGP, Vecchia
from rtgp.linear_algebra import logdet, solve
from rtgp.methods import CG, RFF, RRCG, SSRFF, Cholesky
from rtgp.mll import MarginalLogLikelihood
from rtgp.posterior import Posterior, posterior
from rtgp.preconditioners import Automatic, LowRankAndNeighbours, Neighbours, PivotedCholesky
from rtgp.provenance import __version__
from rtgp.training import FitResult, History, fit

if TYPE_CHECKING:
    from rtgp.diagnostics import diagnose
    from rtgp.regressor import GPRegressor


__all__ = [
    "CG",
    "POE",
    "RFF",
    "RRCG",
    "SGGP",
    "SSRFF",
    "SVGP",
    "Automatic",
    "Cholesky",
    "FitResult",
    "GPRegressor",
    "History",
    "LowRankAndNeighbours",
    "MarginalLogLikelihood",
    "Neighbours",
    "PivotedCholesky",
    "Posterior",
    "Vecchia",
    "__version__",
    "datasets",
    "diagnose",
    "distributed",
    "errors",
    "fit",
    "logdet",
    "operators",
    "posterior",
    "solve",
    "truncation",
]


def __getattr__(name: str) -> Any:
    """The estimator on first use: scikit-learn takes two seconds to load, which the other ways in do not need."""
    if name == "GPRegressor":
        from rtgp.regressor import GPRegressor

        return GPRegressor
    if name == "diagnose":
        from rtgp.diagnostics import diagnose

        return diagnose
    raise AttributeError(f"module 'rtgp' has no attribute {name!r}")
