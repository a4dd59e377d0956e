"""What a trained Gaussian process says of new points: mean, variance, covariance and samples."""

from rtgp.posterior.predict import Posterior, posterior
from rtgp.posterior.settings import PosteriorReport, PosteriorSettings

__all__ = ["Posterior", "PosteriorReport", "PosteriorSettings", "posterior"]
