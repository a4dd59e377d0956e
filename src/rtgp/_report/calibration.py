"""Are the predicted intervals as wide as they should be? Coverage, probability integral transform, scores."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from rtgp._report.content import Array, Predictions

_NORMAL = NormalDist()
NINETY = 1.645  # standard deviations on either side of the mean: an interval of 90%
LEVELS = np.concatenate([np.arange(0.05, 0.95, 0.05), [0.95, 0.99]])


def coverage(predictions: Predictions, level: float = 0.9) -> float:
    """Share of targets inside their central interval of probability `level`."""
    half = _NORMAL.inv_cdf(0.5 + level / 2)
    return float(np.mean(np.abs(predictions.z) <= half))


def coverage_curve(predictions: Predictions) -> tuple[Array, Array]:
    """Stated probabilities and the observed share of targets inside those intervals."""
    return LEVELS, np.array([coverage(predictions, float(level)) for level in LEVELS])


def pit(predictions: Predictions) -> Array:
    """Predictive distribution function at the target: uniform on (0, 1) where the predictions are right."""
    return np.array([_NORMAL.cdf(z) for z in predictions.z])


def normal_quantiles(m: int) -> Array:
    """Where m ordered standard normal numbers are expected to lie."""
    return np.array([_NORMAL.inv_cdf((i + 0.5) / m) for i in range(m)])


def rmse(predictions: Predictions) -> float:
    """Root mean squared error, in the unit of the target."""
    return float(np.sqrt(np.mean((predictions.y - predictions.mean) ** 2)))


def nll(predictions: Predictions, unit: float = 1.0) -> float:
    """Mean negative log predictive density per point, for the target measured in units of `unit`."""
    log_density = -0.5 * predictions.z**2 - np.log(predictions.std / unit) - 0.5 * math.log(2 * math.pi)
    return float(-np.mean(log_density))


def verdict(predictions: Predictions, level: float = 0.9) -> str:
    """One sentence on the coverage, with the error that chance alone makes (two standard errors)."""
    observed, m = coverage(predictions, level), len(predictions)
    error = 2 * math.sqrt(level * (1 - level) / m)
    if abs(observed - level) <= error:
        words = "as stated, up to chance"
    elif observed > level:
        words = "more than stated: the intervals are too wide"
    else:
        words = "fewer than stated: the intervals are too narrow"
    return (
        f"{observed:.1%} of {m} {predictions.kind} targets lie inside their {level:.0%} intervals ({words}; "
        f"chance alone moves this by ±{error:.1%})."
    )
