"""The rows of a system, as `_objectives/reading.py` needs them: points, tasks, and which targets are missing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from rtgp._kernels import KernelForm, Sum
from rtgp._kernels.positions import At
from rtgp._objectives.protocol import Batch
from rtgp._objectives.reading_noise import Noise
from rtgp.errors import InputError


@dataclass(frozen=True)
class Rows:
    """The rows of a system: which point and task each is, and which of them are observed."""

    target: Tensor  # (*batch, N), in the order of the covariance's rows
    point: Tensor  # (N,)
    task: Tensor  # (N,)
    observed: Tensor | None  # positions; None: all

    @property
    def size(self) -> int:
        return len(self.point)

    @staticmethod
    def of(dist: MultivariateNormal, target: Tensor) -> Rows:
        size = dist.loc.shape[-1]
        point = torch.arange(size, device=target.device)
        task = torch.zeros_like(point)
        if isinstance(dist, MultitaskMultivariateNormal):
            n, t = dist.event_shape
            if dist._interleaved:
                point, task = point // t, point % t
            else:
                point, task = point % n, point // n
                target = target.mT
            target = target.reshape(*target.shape[:-2], size)
        missing = _missing(target)
        return Rows(target, point, task, None if missing is None else (~missing).nonzero()[:, 0])

    def observed_of(self, form: KernelForm, noise: Noise, at: tuple[int, ...], mean: Tensor, y: Tensor) -> Batch:
        between = noise.form_at(at, self.point, self.task, form.dtype)
        form, variances, residual = form if between is None else Sum([form, between]), noise.at(at, self.size), y - mean
        if self.observed is None:
            return Batch(form, variances, residual)
        own = variances if variances.ndim == 0 else self.kept(variances)
        return Batch(At(form, self.observed), own, self.kept(residual))

    def kept(self, values: Tensor) -> Tensor:
        return values if self.observed is None else values[self.observed]


def _missing(target: Tensor) -> Tensor | None:
    """Which rows have no target, by GPyTorch's own policy: those that are NaN in any model of a batch. None: no rows,
    or the policy is not to look."""
    policy = settings.observation_nan_policy.value()
    if policy == "ignore":
        return None
    if policy == "fill":
        raise InputError(
            "Expected gpytorch.settings.observation_nan_policy('mask'), or 'ignore' where no target is NaN. Got "
            "'fill', which the exact marginal likelihood does not know, GPyTorch's own neither."
        )
    missing = target.isnan().reshape(-1, target.shape[-1]).any(0)
    if bool(missing.all()):
        raise InputError("Expected at least one target that is no NaN in any model of the batch. Got none.")
    return missing if bool(missing.any()) else None
