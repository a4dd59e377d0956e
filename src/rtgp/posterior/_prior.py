"""The Gaussian process prior behind a GPyTorch model: what it says of its training data and, jointly, of new points.

The model is read through its own `forward`, so that means, deep kernels and sums of kernels come as they are; it is in
eval mode while it is read (as when GPyTorch predicts), and in the mode it was found in afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._objectives.reading import copied, joint, own_data, read
from rtgp.errors import RTGPError
from rtgp.posterior._checks import check_noise, check_targets, check_training_inputs

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
    residual: Tensor  # (n,) or, of several outputs, (n, t): y - mean

    @staticmethod
    def read(model: Any, likelihood: Any) -> Prior:
        x = check_training_inputs(model)
        y = own_data(model)[1]
        check_targets(y, x.new_empty(*y.shape[:-1], x.shape[0]))
        noise = check_noise(likelihood, x.shape[0])
        batch = read(model, likelihood)
        return Prior(model, x, batch.form, noise, batch.residual)

    def in_float64(self, likelihood: Any) -> Prior:
        """The same prior from a float64 copy of the model: features and parameters too."""
        try:
            model, _ = copied(self.model)
        except RTGPError as error:
            raise RTGPError(
                "float32 is too coarse to predict from this model, and it cannot be copied to float64 "
                f"({error}). Make the posterior of the model in float64: model.double()."
            ) from error
        return Prior.read(model.double().eval(), likelihood)

    def form_in(self, dtype: torch.dtype) -> KernelForm:
        """K(X, X) whose blocks come in another precision; parameters and features are the model's."""
        return self.form if self.form.dtype == dtype else self.joint(self.x[:0], dtype, transformed=True)[1]

    def slabs(self, x_new: Tensor) -> Iterator[tuple[slice, Tensor, KernelForm]]:
        """(which of the new points, their prior mean (m,) or (m, t), the form of the training points, then they)."""
        d = self.x.shape[1]
        size = max(1, min(_SLAB_POINTS, _SLAB_BYTES // (8 * max(d, 1))))
        for start in range(0, x_new.shape[0], size):
            piece = slice(start, min(start + size, x_new.shape[0]))
            yield piece, *self.joint(x_new[piece])

    def joint(
        self, x_new: Tensor, dtype: torch.dtype | None = None, transformed: bool = False
    ) -> tuple[Tensor, KernelForm]:
        """The prior mean of the new points, (m,) or (m, t), and the form of the training points followed by them.
        transformed: whether the new points have gone through BoTorch's input transform already."""
        return joint(self.model, self.x, x_new.to(self.x), dtype, transformed)
