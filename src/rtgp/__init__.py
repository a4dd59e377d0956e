"""Gaussian processes learned without the bias of truncated solvers or random features."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rtgp import distributed, errors, operators, truncation
from rtgp._baselines import POE, SGGP, SVGP
from rtgp._methods import CG, RFF, RRCG, SSRFF, Cholesky, Vecchia
from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives import SharedOutputs
from rtgp._preconditioners import Automatic, LowRankAndNeighbours, Neighbours, PivotedCholesky
from rtgp._provenance import __version__
from rtgp.posterior import posterior

if TYPE_CHECKING:
    from rtgp import datasets, tables
    from rtgp._estimator.regressor import GPRegressor
    from rtgp._linear_algebra import logdet, solve
    from rtgp.diagnostics import diagnose
    from rtgp.posterior import Posterior
    from rtgp.training import FitResult, History, fit

# Loaded on first use, so that a loop of one's own does not wait for what it does not need: scikit-learn alone takes two
# seconds.
_ON_FIRST_USE = {
    "GPRegressor": "rtgp._estimator.regressor",
    "Posterior": "rtgp.posterior",
    "diagnose": "rtgp.diagnostics",
    **dict.fromkeys(("logdet", "solve"), "rtgp._linear_algebra"),
    **dict.fromkeys(("FitResult", "History", "fit"), "rtgp.training"),
}

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
    "SharedOutputs",
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
    "tables",
    "truncation",
]


def __getattr__(name: str) -> Any:
    """A public name on its first use, or the package whose names are public."""
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    if name in ("datasets", "tables", "training"):
        return import_module(f"rtgp.{name}")
    raise AttributeError(f"module 'rtgp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
