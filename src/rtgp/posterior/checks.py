"""What is asked of a model, of its data and of new points, in words that name the remedy."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from rtgp.errors import InputError, UnsupportedModelError


def check_model(model: Any, likelihood: Any) -> None:
    if not isinstance(likelihood, (GaussianLikelihood, FixedNoiseGaussianLikelihood)):
        raise UnsupportedModelError(
            "Expected a GaussianLikelihood or a FixedNoiseGaussianLikelihood. "
            f"Got {type(likelihood).__name__}: call posterior(model, likelihood), in this order, with Gaussian noise."
        )
    if not isinstance(model, torch.nn.Module) or not all(hasattr(model, a) for a in ("train_inputs", "train_targets")):
        raise UnsupportedModelError(
            f"Expected a GPyTorch model that holds its training data (gpytorch.models.ExactGP). "
            f"Got {type(model).__name__}: call posterior(model, likelihood), in this order."
        )


def check_training_inputs(model: Any) -> Tensor:
    """The training inputs, (n, d)."""
    inputs = model.train_inputs
    if not inputs or model.train_targets is None:
        raise InputError(
            "Expected a model with training data. Got one without: model.set_train_data(X, y) gives it some."
        )
    if len(inputs) != 1:
        raise UnsupportedModelError(
            f"Expected a model of one tensor of inputs. Got {len(inputs)}: put them side by side in one tensor and "
            "take them apart in the model's forward."
        )
    x: Tensor = inputs[0] if inputs[0].ndim != 1 else inputs[0][:, None]
    if x.ndim != 2 or x.shape[0] == 0:
        raise UnsupportedModelError(
            f"Expected training inputs of shape (n, d) with n > 0. Got {tuple(x.shape)}; batches of models are not "
            "supported: predict from one at a time."
        )
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
    noise: Tensor = likelihood.noise.detach().double()
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


def check_new_inputs(x: object, d: int) -> Tensor:
    """The new points, (m, d)."""
    if not isinstance(x, Tensor):
        raise InputError(f"Expected the new inputs as a torch.Tensor. Got {type(x).__name__}: pass torch.as_tensor(X).")
    if x.is_complex():
        raise InputError(f"Expected real inputs. Got {x.dtype}.")
    if x.ndim == 1 and d == 1:
        x = x[:, None]
    if x.ndim != 2 or x.shape[1] != d:
        hint = (
            "pass X[None, :] for one point" if x.ndim == 1 and x.shape[0] == d else "give the columns of the training"
        )
        raise InputError(
            f"Expected inputs of shape (m, {d}), as the model was trained on. Got {tuple(x.shape)}: {hint}."
        )
    if x.shape[0] == 0:
        raise InputError(f"Expected at least one point to predict at. Got an empty tensor of shape {tuple(x.shape)}.")
    _require_finite("inputs", x)
    return x


def check_new_noise(likelihood: Any, noise: Tensor | float | None, m: int) -> Tensor:
    """The noise variances of new observations, () or (m,) float64."""
    if isinstance(likelihood, GaussianLikelihood):
        if noise is not None:
            raise InputError("Expected no 'noise' with a GaussianLikelihood, whose own noise is used. Leave it out.")
        own: Tensor = likelihood.noise.detach().double().reshape(())
        return own
    if noise is None:
        raise InputError(
            "The noise of new observations is not known: the likelihood has one known variance for each training "
            "point. Pass theirs, include_noise=True, noise=..., a number or one for each new point."
        )
    given = torch.as_tensor(noise, dtype=torch.float64).detach()
    if given.shape not in ((), (m,)) or not bool(((given >= 0) & torch.isfinite(given)).all()):
        raise InputError(
            f"Expected 'noise' as one variance or {m} of them, none negative, all finite. Got shape "
            f"{tuple(given.shape)} and values from {float(given.min()):.3g} to {float(given.max()):.3g}."
        )
    second = torch.as_tensor(likelihood.second_noise, dtype=torch.float64).detach().reshape(-1)  # learned, or 0
    return given + second.to(given.device).sum()


def _require_finite(what: str, x: Tensor) -> None:
    if not bool(torch.isfinite(x).all()):
        row, column = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise InputError(
            f"Expected finite {what}. Got {float(x[row, column])} at row {row}, column {column}: drop or fill that row."
        )
