"""Predictions of one fitted model in original units, of one output or of several that share it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rtgp._estimator.arguments import array_of
from rtgp.datasets._dataset import Array

Predicted = Array | tuple[Array, Array]


def predicted(
    at: Any, x: torch.Tensor, scaling: Any, noise: Any, return_std: bool = False, return_cov: bool = False
) -> Predicted:
    """Means (m,) or (m, t), with standard deviations of that shape or covariances (m, m) or (m, m, t) on request.

    at: the posterior; x: in working units; noise: that is added, in original units, () or (t,).
    """
    squares, means = scaling.y_scale**2, scaling.unscale_target(array_of(at.mean(x)).T)
    if return_std:
        variances = np.multiply.outer(array_of(at.variance(x)), squares)
        return means, np.sqrt(np.maximum(variances, 0.0) + noise)
    if return_cov:
        covariances = np.multiply.outer(array_of(at.covariance(x)), squares)
        covariances[np.diag_indices(len(covariances))] += noise
        return means, covariances
    found: Array = means
    return found


def sampled(at: Any, x: torch.Tensor, scaling: Any, noise: Any, n_samples: int, generator: torch.Generator) -> Array:
    """(m, n_samples), or (m, t, n_samples). noise: as above."""
    drawn = array_of(at.sample(x, n_samples, generator=generator))  # (n_samples, m) or (n_samples, t, m)
    samples = np.moveaxis(drawn, 0, -1) if drawn.ndim == 2 else drawn.transpose(2, 1, 0)
    scale, mean, errors = (np.asarray(one)[..., None] for one in (scaling.y_scale, scaling.y_mean, np.sqrt(noise)))
    samples = np.asarray(samples * scale + mean, dtype=np.float64)
    if np.any(noise):
        samples += errors * torch.randn(samples.shape, generator=generator, dtype=torch.float64).numpy()
    return samples
