"""The data of models that are not one model of one tensor of inputs: several inputs, batches, several tasks.

Part of `_objectives/reading.py`. Training passes data on as two tensors. Several inputs become one, their columns side
by side, and are taken apart again where the model is called.
"""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import InducingPointKernel
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.likelihoods.hadamard_gaussian_likelihood import HadamardGaussianLikelihood
from torch import Tensor

from rtgp._objectives.outputs import SharedOutputs
from rtgp.errors import InputError, UnsupportedModelError


def is_plain(model: Any) -> bool:
    """Whether it is one model of inputs (n, d) and targets (n,), or (t, n) of outputs that share them, or has no data
    yet."""
    inputs: tuple[Any, ...] = getattr(model, "train_inputs", None) or ()
    y = getattr(model, "train_targets", None)
    if not inputs or y is None:
        return True
    if len(inputs) != 1 or inputs[0].ndim > 2:
        return False
    return y.ndim == 1 or y.shape == (len(inputs[0]), 1) or _shares_outputs(model, inputs[0], y)


def _shares_outputs(model: Any, x: Tensor, y: Tensor) -> bool:
    """Only what its forward returns tells outputs that share one covariance from a batch of models."""
    if y.ndim != 2 or y.shape[1] != len(x):
        return False
    with torch.no_grad():
        return isinstance(model.forward(x[:2]), SharedOutputs)


def untransformed_inputs(model: Any) -> tuple[Tensor, ...]:
    """The training inputs before BoTorch's transform, which in eval mode has been applied."""
    if getattr(model, "_has_transformed_inputs", False):
        return (model._original_train_inputs,)
    return tuple(model.train_inputs)


def packed(inputs: tuple[Tensor, ...]) -> Tensor:
    """As one tensor (*batch, n, columns)."""
    if len(inputs) == 1:
        return inputs[0]
    dtype = next((x.dtype for x in inputs if x.is_floating_point()), torch.get_default_dtype())
    return torch.cat([x.to(dtype) for x in inputs], dim=-1)


def unpacked(model: Any, X: Tensor) -> tuple[Tensor, ...]:
    """As the model's forward takes them."""
    held = tuple(getattr(model, "train_inputs", None) or ())
    if len(held) < 2:
        return (X,)
    pieces = torch.split(X, [x.shape[-1] for x in held], dim=-1)
    return tuple(piece if x.is_floating_point() else piece.to(x.dtype) for piece, x in zip(pieces, held, strict=True))


def output(model: Any, X: Tensor) -> Any:
    """The model's output on inputs that may be packed."""
    return model(*unpacked(model, X))


def hold(model: Any, X: Tensor, y: Tensor) -> None:
    """Make these its training data."""
    model.set_train_data(unpacked(model, X), y, strict=False)


def rows_of(likelihood: Any, y: Tensor) -> int:
    """Of the system of one model."""
    return y.shape[-2:].numel() if isinstance(likelihood, MultitaskGaussianLikelihood) else y.shape[-1]


def own_data_of_its_kind(model: Any, X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """The data of a model that is not plain, packed: X and y as the user gives them must be its own."""
    own, targets = untransformed_inputs(model), model.train_targets
    if len(own) > 1 and isinstance(X, Tensor) and _equal(X, packed(own)):
        X = own
    given = tuple(X) if isinstance(X, (tuple, list)) and len(own) > 1 else (X,)
    same = len(given) == len(own) and all(
        any(_equal(x, one) for one in ones)
        for x, ones in zip(given, zip(own, model.train_inputs, strict=True), strict=True)
    )
    if same and _equal(y, targets):
        return packed(own), targets
    shapes = ", ".join(str(tuple(x.shape)) for x in own)
    words = "model.train_inputs" if len(own) > 1 else "model.train_inputs[0]"
    raise InputError(
        f"Expected the model's own training data, inputs of shape {shapes} and targets of shape "
        f"{tuple(targets.shape)}: it is a batch of models, or has several tasks or inputs. Got others: pass {words} "
        "and model.train_targets, and to train on other data call model.set_train_data first."
    )


def _equal(given: Any, own: Tensor) -> bool:
    try:
        given = torch.as_tensor(given).to(own.device)
    except (TypeError, ValueError, RuntimeError):
        return False
    given = given[:, None] if given.ndim == 1 and own.ndim == 2 else given
    return given.shape == own.shape and bool(torch.equal(given.to(own.dtype).nan_to_num(), own.detach().nan_to_num()))


def check_one_output(model: Any, likelihood: Any, call: str, predicts: bool = True) -> None:
    """Refuse what is more than one model of one output; call: what cannot take it, in words. predicts: whether it gives
    predictions, of which some kernels have their own."""
    inputs: tuple[Any, ...] = getattr(model, "train_inputs", None) or ()
    if isinstance(likelihood, MultitaskGaussianLikelihood):
        what = "several tasks (MultitaskGaussianLikelihood)"
    elif isinstance(likelihood, HadamardGaussianLikelihood):
        what = "a noise for each task (HadamardGaussianLikelihood)"
    elif len(inputs) > 1:
        what = f"a model of {len(inputs)} inputs"
    elif not is_plain(model):
        what = f"a batch of models, with inputs of shape {tuple(inputs[0].shape)}"
    elif predicts and any(isinstance(module, InducingPointKernel) for module in model.modules()):
        what = "an InducingPointKernel, whose predictions are an approximation of its own"
    else:
        return
    raise UnsupportedModelError(
        f"Expected one model of one output and one tensor of inputs for {call}. Got {what}: train it by rtgp.fit or "
        "rtgp.MarginalLogLikelihood, and predict by the model itself, model(x) in eval mode."
    )
