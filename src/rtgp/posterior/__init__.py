"""What a trained Gaussian process says of new points: mean, variance, covariance and samples."""

from rtgp.posterior.make import posterior
from rtgp.posterior.marginal import MarginalPosterior
from rtgp.posterior.paths import Paths
from rtgp.posterior.predict import Posterior
from rtgp.posterior.settings import PosteriorReport, PosteriorSettings

__all__ = ["MarginalPosterior", "Paths", "Posterior", "PosteriorReport", "PosteriorSettings", "posterior"]
