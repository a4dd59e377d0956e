"""What is asked of a model, of its data and of new points, in words that name the remedy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtgp._objectives.reading import held_inputs, noise_level
from rtgp.errors import InputError


def check_training_inputs(model: Any) -> Tensor:
    """The training inputs, (n, d), as the model holds them in eval mode."""
    x = held_inputs(model)
    _require_finite("training inputs", x)
    return x


def check_targets(y: Tensor, mean: Tensor) -> Tensor:
    if y.shape != mean.shape:
        raise InputError(f"Expected training targets of shape {tuple(mean.shape)}. Got {tuple(y.shape)}.")
    if not bool(torch.isfinite(y).all()):
        row = int((~torch.isfinite(y)).nonzero()[0, 0])
        raise InputError(f"Expected finite training targets. Got {float(y[row])} at row {row}: drop that row.")
    return y


def check_noise(likelihood: Any, n: int) -> Tensor:
    """The noise variances of the training points, (n,) float64."""
    noise = noise_level(likelihood).double()
    if noise.numel() != 1 and noise.shape != (n,):
        raise InputError(
            f"Expected one noise variance, or one for each of the {n} training points. Got shape {tuple(noise.shape)}: "
            f"make the likelihood without a batch shape and with noise of shape ({n},)."
        )
    if not bool(((noise > 0) & torch.isfinite(noise)).all()):
        raise InputError(
            "Expected noise variances that are positive and finite. Got values between "
            f"{float(noise.min()):.3g} and {float(noise.max()):.3g}: give every point a positive noise."
        )
    return noise.reshape(-1).expand(n)


def check_new_inputs(x: object, d: int, batches: bool = False) -> Tensor:
    """The new points, (m, d); or with batches of them allowed, (..., m, d)."""
    if not isinstance(x, Tensor):
        raise InputError(f"Expected the new inputs as a torch.Tensor. Got {type(x).__name__}: pass torch.as_tensor(X).")
    if x.is_complex():
        raise InputError(f"Expected real inputs. Got {x.dtype}.")
    if x.ndim == 1 and d == 1:
        x = x[:, None]
    if x.ndim < 2 or (x.ndim > 2 and not batches) or x.shape[-1] != d:
        hint = (
            "pass X[None, :] for one point" if x.ndim == 1 and x.shape[0] == d else "give the columns of the training"
        )
        raise InputError(
            f"Expected inputs of shape (m, {d}), as the model was trained on. Got {tuple(x.shape)}: {hint}."
        )
    if x.numel() == 0:
        raise InputError(f"Expected at least one point to predict at. Got an empty tensor of shape {tuple(x.shape)}.")
    _require_finite("inputs", x)
    return x


def _require_finite(what: str, x: Tensor) -> None:
    if not bool(torch.isfinite(x).all()):
        *rows, column = (~torch.isfinite(x)).nonzero()[0].tolist()
        row = ", ".join(map(str, rows))
        found = float(x[(*rows, column)])
        raise InputError(f"Expected finite {what}. Got {found} at row {row}, column {column}: drop or fill that row.")
