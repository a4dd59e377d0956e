"""The units of Y, where BoTorch's outcome transform stands between Y and the model's targets.

A linear transform (Standardize) takes a Gaussian to a Gaussian. Another one (Log, Bilog) has a mean and a variance
where BoTorch knows them, samples always, and no covariance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtgp._objectives.reading import outcome_transform
from rtgp.errors import UnsupportedModelError


def is_linear(model: Any) -> bool:
    """Whether the posterior of Y is Gaussian where that of the model's targets is."""
    transform = outcome_transform(model)
    return transform is None or bool(getattr(transform, "_is_linear", False))


def values_of(model: Any, values: Tensor, X: Tensor) -> Tensor:
    """Values of the function or its mean (..., m) at X (..., m, d), in the units of Y; a mean where it is linear."""
    transform = outcome_transform(model)
    if transform is None:
        return values
    found: Tensor = transform.untransform(values[..., None], X=X)[0][..., 0]
    return found


def variance_of(model: Any, mean: Tensor, variance: Tensor, X: Tensor) -> Tensor:
    """Of a variance (..., m) of the model's targets, the one of Y."""
    if outcome_transform(model) is None:
        return variance
    if not is_linear(model):
        return nonlinear(model, mean, variance, X)[1]
    return variance * _scales(model, X, variance).square()


def covariance_of(model: Any, covariance: Tensor, X: Tensor) -> Tensor:
    """Of a covariance (..., m, m) of the model's targets, the one of Y."""
    if outcome_transform(model) is None:
        return covariance
    if not is_linear(model):
        raise _no_moment(model, "covariance")
    scales = _scales(model, X, covariance)
    return covariance * scales[..., :, None] * scales[..., None, :]


def _scales(model: Any, X: Tensor, like: Tensor) -> Tensor:
    """By which a linear transform multiplies standard deviations at X (..., m, d), (..., m)."""
    ones = torch.ones(X.shape[:-1], dtype=like.dtype, device=like.device)[..., None]
    with torch.no_grad():
        found: Tensor = outcome_transform(model).untransform(ones, Yvar=ones, X=X)[1][..., 0]
    return found.sqrt()


def nonlinear(model: Any, mean: Tensor, variance: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of Y (..., m), as BoTorch has them for this transform."""
    from botorch.posteriors.gpytorch import GPyTorchPosterior  # the model is BoTorch's: it is there
    from gpytorch.distributions import MultivariateNormal
    from linear_operator.operators import DenseLinearOperator

    each = MultivariateNormal(mean[..., None], DenseLinearOperator(variance[..., None, None]))
    found = outcome_transform(model).untransform_posterior(GPyTorchPosterior(each), X=X[..., None, :])
    try:
        return found.mean[..., 0, 0], found.variance[..., 0, 0]
    except NotImplementedError:
        raise _no_moment(model, "mean and variance") from None


def _no_moment(model: Any, what: str) -> UnsupportedModelError:
    name = type(outcome_transform(model)).__name__
    return UnsupportedModelError(
        f"Expected an outcome transform whose {what} BoTorch knows, such as Standardize. Got {name}, of which it gives "
        "samples only: use .sample or .paths."
    )
