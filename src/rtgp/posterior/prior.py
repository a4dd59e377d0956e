"""The Gaussian process prior behind a GPyTorch model: what it says of its training data and, jointly, of new points.

The model is read through its own `forward`, so that means, deep kernels and sums of kernels come as they are; it is in
eval mode while it is read (as when GPyTorch predicts), and in the mode it was found in afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from rtgp.errors import InputError, RTGPError, UnsupportedModelError
from rtgp.kernels import KernelForm, read_covariance
from rtgp.ownership import without_cycles
from rtgp.posterior.checks import check_noise, check_targets, check_training_inputs

_SLAB_BYTES = 64 * 2**20  # of inputs, read through the model at once
_SLAB_POINTS = 16_384


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No gradients, and eval mode within; every module's own mode is put back afterwards."""
    with torch.inference_mode(False), torch.no_grad():
        if not model.training:
            yield
            return
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            model.train()
            for module, mode in modes:
                module.training = mode


@dataclass(frozen=True)
class Prior:
    """y ~ N(mean, K + noise) on the training points. To be made and used within `evaluating(model)`."""

    model: Any  # the model itself, or its float64 copy
    x: Tensor  # (n, d)
    form: KernelForm  # K(X, X)
    noise: Tensor  # (n,) float64
    residual: Tensor  # (n,): y - mean

    @staticmethod
    def read(model: Any, likelihood: Any) -> Prior:
        x = check_training_inputs(model)
        mean, form = _forward(model, x)
        y = check_targets(model.train_targets, mean)
        return Prior(model, x, form, check_noise(likelihood, x.shape[0]), y - mean)

    def in_float64(self, likelihood: Any) -> Prior:
        """The same prior from a float64 copy of the model: features and parameters too."""
        strategy = getattr(self.model, "prediction_strategy", None)
        try:
            # GPyTorch's cache of its own predictions holds autograd history, which cannot be copied; it is not needed.
            copied = copy.deepcopy(self.model, {id(strategy): None} if strategy is not None else {}).double().eval()
        except RuntimeError as error:
            raise RTGPError(
                "float32 is too coarse to predict from this model, and it cannot be copied to float64 "
                f"({error}). Make the posterior of the model in float64: model.double()."
            ) from error
        return Prior.read(without_cycles(copied), likelihood)

    def slabs(self, x_new: Tensor) -> Iterator[tuple[slice, Tensor, KernelForm]]:
        """(which of the new points, their prior mean (m,), the form of the training points followed by them)."""
        d = self.x.shape[1]
        size = max(1, min(_SLAB_POINTS, _SLAB_BYTES // (8 * max(d, 1))))
        for start in range(0, x_new.shape[0], size):
            piece = slice(start, min(start + size, x_new.shape[0]))
            yield piece, *self.joint(x_new[piece])

    def joint(self, x_new: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, KernelForm]:
        """The prior mean of the new points (m,), and the form of the training points followed by them."""
        x_new = x_new.to(self.x)
        if hasattr(self.model, "transform_inputs"):  # BoTorch: in eval mode the training inputs are transformed already
            x_new = self.model.transform_inputs(x_new)
        mean, form = _forward(self.model, torch.cat([self.x, x_new]), dtype)
        return mean[self.x.shape[0] :], form


def _forward(model: Any, x: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, KernelForm]:
    dist = model.forward(x)
    if isinstance(dist, MultitaskMultivariateNormal) or not isinstance(dist, MultivariateNormal):
        raise UnsupportedModelError(
            "Expected a model whose forward returns a MultivariateNormal, one value for each point. "
            f"Got {type(dist).__name__}: make one model for each output."
        )
    mean: Tensor = dist.mean
    if mean.shape != x.shape[:1]:
        raise UnsupportedModelError(
            f"Expected one model, whose output has shape ({x.shape[0]},). Got {tuple(mean.shape)}: batches of models "
            "are not supported, predict from one at a time."
        )
    form = read_covariance(dist.lazy_covariance_matrix, dtype)
    if not all(bool(torch.isfinite(t).all()) for t in (mean, *form.tensors)):
        raise InputError(
            "Expected a model with finite mean, kernel inputs and parameters. Got NaN or infinity: a parameter has "
            "diverged, or a network gives such values at these inputs. Train again with a lower learning rate."
        )
    return mean, form
