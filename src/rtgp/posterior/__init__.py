"""What a trained Gaussian process says of new points: mean, variance, covariance and samples."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rtgp.posterior._make import posterior

if TYPE_CHECKING:
    from rtgp.posterior._marginal import MarginalPosterior
    from rtgp.posterior._paths import Paths
    from rtgp.posterior._predict import Posterior
    from rtgp.posterior._settings import PosteriorReport, PosteriorSettings

__all__ = ["MarginalPosterior", "Paths", "Posterior", "PosteriorReport", "PosteriorSettings", "posterior"]

_ON_FIRST_USE = {
    "MarginalPosterior": "rtgp.posterior._marginal",
    "Paths": "rtgp.posterior._paths",
    "Posterior": "rtgp.posterior._predict",
    "PosteriorReport": "rtgp.posterior._settings",
    "PosteriorSettings": "rtgp.posterior._settings",
}


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
