"""Predictions at batches of sets of points, (..., q, d), differentiable in the points where autograd records."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.posterior._cache import PredictionCache
from rtgp.posterior._sampling import SamplingSettings, check_moderate, gaussian, root
from rtgp.posterior._tape import cross_product, isolated, moments


def mean_of_batches(cache: PredictionCache, X: Tensor, transformed: bool = False) -> Tensor:
    """The posterior mean, (..., q)."""

    def compute(x: Tensor) -> tuple[Tensor]:
        prior, form = cache.prior.joint(x, transformed=transformed)
        return (prior.double() + cross_product(form, cache.system.size, cache.weights)[:, 0],)

    return isolated(compute, X.flatten(0, -2))[0].reshape(X.shape[:-1])


def joint_moments(cache: PredictionCache, X: Tensor, transformed: bool = False) -> tuple[Tensor, Tensor]:
    """The posterior mean (..., q) and covariance (..., q, q) of each set.

    transformed: whether X has gone through BoTorch's input transform already.
    """
    q = X.shape[-2]
    check_moderate(cache.system.size, q, cache.settings.internal.sampling)

    def compute(x: Tensor) -> tuple[Tensor, Tensor]:
        prior, form = cache.prior.joint(x, transformed=transformed)
        added, covariance = moments(cache, form, q)
        return prior.double() + added, covariance

    mean, covariance = isolated(compute, X.flatten(0, -2))
    return mean.reshape(X.shape[:-1]), covariance.reshape(*X.shape[:-1], q)


def normal_samples(
    mean: Tensor, covariance: Tensor, count: int, generator: torch.Generator | None, settings: SamplingSettings
) -> Tensor:
    """Samples (count, ..., q) from a mean (..., q) and a covariance (..., q, q), differentiable in both."""
    q = mean.shape[-1]
    sets = mean.numel() // q
    drawn = gaussian(sets * q, count, generator, mean.device).T.reshape(count, sets, q, 1)
    blocks = covariance.reshape(sets, q, q)
    if covariance.requires_grad and torch.is_grad_enabled():
        factor = _differentiable_root(blocks, settings)
    else:
        factor = torch.stack([root(block, settings) for block in blocks])
    return mean + (factor @ drawn)[..., 0].reshape(count, *mean.shape)


def _differentiable_root(blocks: Tensor, settings: SamplingSettings) -> Tensor:
    """The Cholesky factor of each block, with the least jitter of the settings at which all have one."""
    size = blocks.detach().diagonal(dim1=1, dim2=2).mean(1)[:, None].expand(blocks.shape[:2])
    for jitter in (0.0, *settings.jitters[:-1]):
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(blocks + torch.diag_embed(jitter * size))
        if not bool(info.any()):
            return factor
    last: Tensor = torch.linalg.cholesky(blocks + torch.diag_embed(settings.jitters[-1] * size))
    return last
