"""What a trained Gaussian process says of new points: mean, variance, covariance and samples."""

from rtgp.posterior._make import posterior
from rtgp.posterior._marginal import MarginalPosterior
from rtgp.posterior._paths import Paths
from rtgp.posterior._predict import Posterior
from rtgp.posterior._settings import PosteriorReport, PosteriorSettings

__all__ = ["MarginalPosterior", "Paths", "Posterior", "PosteriorReport", "PosteriorSettings", "posterior"]
