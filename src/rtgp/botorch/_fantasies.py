"""A posterior conditioned on batches of further observations, without a further factor.

With mean m and covariance C given the training data, a few observations y at x add, as in any Gaussian,

    m(z) + C(z, x) (C(x, x) + D)^-1 (y - m(x)),    C(z, z') - C(z, x) (C(x, x) + D)^-1 C(x, z').
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtgp._objectives.reading import known_noise, noise_of_new
from rtgp.errors import InputError

Moments = Callable[[Tensor], tuple[Tensor, Tensor]]


def broadcast(*shapes: torch.Size) -> torch.Size:
    """The shape that tensors of these shapes have together."""
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Fantasies:
    """Observations beside the training data, in the units of the model's inputs and targets."""

    x: Tensor  # (..., k, d)
    y: Tensor  # (..., k)
    noise: Tensor  # (..., k)

    @staticmethod
    def of(likelihood: Any, x: Tensor, y: Tensor, noise: Tensor | None, before: Fantasies | None) -> Fantasies:
        """before: those that are there already."""
        try:
            broadcast(x.shape[:-1], y.shape)
        except RuntimeError:
            raise InputError(
                "Expected observations Y (..., k, 1) at points X (..., k, d) whose shapes before the last one go "
                f"together. Got X of shape {tuple(x.shape)} and Y of shape {(*y.shape, 1)}."
            ) from None
        if noise is None:
            if known_noise(likelihood) is not None:
                raise InputError(
                    "Expected 'noise', the variances of the new observations: the likelihood has a known one for each "
                    "training point. Pass condition_on_observations(X, Y, noise=...)."
                )
            noise = noise_of_new(likelihood, None, 1).to(y)
        noise = noise.to(y).expand(y.shape)
        if before is None:
            return Fantasies(x, y, noise)
        lead = broadcast(before.x.shape[:-2], x.shape[:-2])
        points = torch.cat([one.expand(*lead, *one.shape[-2:]) for one in (before.x, x)], dim=-2)
        lead = broadcast(before.y.shape[:-1], y.shape[:-1])
        pairs = ((before.y, y), (before.noise, noise))
        values, noises = (torch.cat([one.expand(*lead, one.shape[-1]) for one in pair], dim=-1) for pair in pairs)
        return Fantasies(points, values, noises)

    @property
    def batch_shape(self) -> torch.Size:
        return broadcast(self.x.shape[:-2], self.y.shape[:-1])

    def moments(self, given: Moments, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (..., q) and covariance (..., q, q) at X (..., q, d); `given` has them without these observations."""
        k = self.x.shape[-2]
        lead = broadcast(self.batch_shape, X.shape[:-2])
        both = torch.cat([points.expand(*lead, *points.shape[-2:]) for points in (self.x, X)], dim=-2)
        mean, covariance = given(both)
        known = covariance[..., :k, :k] + torch.diag_embed(self.noise)
        across = covariance[..., :k, k:]
        factor = torch.linalg.cholesky(known)
        gain = torch.cholesky_solve(across, factor)  # (..., k, q)
        surprise = (self.y - mean[..., :k])[..., None]
        mean = mean[..., k:] + (gain.mT @ surprise)[..., 0]
        left = covariance[..., k:, k:] - across.mT @ gain
        return mean, (left + left.mT) / 2
