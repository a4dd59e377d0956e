"""The only reader of a user's model: model, likelihood and data become a `Batch`, or several.

A batch of models is read as that many systems. Several tasks of one model are one system, whose rows are the pairs of
point and task. Several outputs that share one kernel and noise (`SharedOutputs`: means (t, n), one covariance (n, n),
targets (t, n)) are one system with t right-hand sides. Training, prediction, experts, diagnosis and reports read here,
and nowhere else.

BoTorch's transforms are part of the model. Its input transform is applied by the model's forward in training mode; in
eval mode the model holds inputs that are transformed already. Its outcome transform has been applied when the model was
made: `train_targets` are not in the units of Y.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.models import GP
from torch import Tensor

from rtgp._kernels import KernelForm, read_covariance
from rtgp._objectives.outputs import SharedOutputs
from rtgp._objectives.protocol import Batch
from rtgp._objectives.reading_inputs import (
    check_one_output,
    hold,
    is_plain,
    output,
    own_data_of_its_kind,
    packed,
    rows_of,
    untransformed_inputs,
)
from rtgp._objectives.reading_noise import known_noise, read_noise
from rtgp._objectives.reading_rows import Rows
from rtgp._ownership import without_cycles
from rtgp.errors import InputError, RTGPError, UnsupportedModelError

__all__ = [
    "Systems", "check_inputs", "check_model", "check_one_output", "copied", "given_data", "has_data", "held_inputs",
    "hold", "joint", "known_noise", "mean_of", "noise_level", "noise_of_new", "on_subset", "outcome_transform_of",
    "output", "own_data", "read", "read_output", "read_systems", "refuse_several_outputs", "rows_of", "set_known_noise",
    "tensors_of",
]  # fmt: skip

_SAME = 1e-5  # relative: data that differ by less are the same, in another precision


# What a model is.


def check_model(model: Any, likelihood: Any, call: str) -> None:
    """Refuse what is no exact Gaussian process with Gaussian noise. `call` shows the order of the arguments."""
    if isinstance(likelihood, GP) and isinstance(model, Likelihood):
        raise UnsupportedModelError(
            f"Expected {call}, in this order. Got {type(likelihood).__name__} where the likelihood belongs and "
            f"{type(model).__name__} where the model does: exchange them."
        )
    if not isinstance(likelihood, _GaussianLikelihoodBase):
        raise UnsupportedModelError(
            "Expected a likelihood of Gaussian noise: GaussianLikelihood, FixedNoiseGaussianLikelihood, "
            f"MultitaskGaussianLikelihood or HadamardGaussianLikelihood. Got {type(likelihood).__name__}: the marginal "
            "likelihood has a closed form for Gaussian noise only. Use one of these, or gpytorch.mlls.VariationalELBO "
            "for other likelihoods."
        )
    if not isinstance(model, GP):
        raise UnsupportedModelError(
            "Expected a GPyTorch model that holds its training data (gpytorch.models.ExactGP). "
            f"Got {type(model).__name__} instead: call {call}, in this order."
        )


def outcome_transform_of(model: Any) -> str | None:
    """The name of BoTorch's transform of the targets; None where there is none."""
    transform = outcome_transform(model)
    return None if transform is None else type(transform).__name__


def outcome_transform(model: Any) -> Any:
    """BoTorch's transform of the targets itself; None where there is none."""
    return getattr(model, "outcome_transform", None)


# Its data.


def has_data(model: Any) -> bool:
    return bool(getattr(model, "train_inputs", None)) and getattr(model, "train_targets", None) is not None


def is_batch(model: Any) -> bool:
    """Whether a model holds several sets of training data, as one that BoTorch has fantasised does."""
    return any(x.ndim > 2 for x in model.train_inputs) or model.train_targets.ndim > 1


def held_inputs(model: Any) -> Tensor:
    """The training inputs (n, d) as the model's forward takes them now: transformed in eval mode."""
    if not has_data(model):
        raise InputError(
            "Expected a model with training data. Got one without: model.set_train_data(X, y) gives it some."
        )
    inputs = model.train_inputs
    if len(inputs) != 1:
        raise UnsupportedModelError(
            f"Expected a model of one tensor of inputs here. Got {len(inputs)}: put them side by side in one tensor "
            "and take them apart in the model's forward, or predict by the model itself, model(x) in eval mode."
        )
    x: Tensor = inputs[0] if inputs[0].ndim != 1 else inputs[0][:, None]
    if x.ndim != 2 or x.shape[0] == 0:
        raise UnsupportedModelError(
            f"Expected training inputs of shape (n, d) with n > 0 here. Got {tuple(x.shape)}: of a batch of models "
            "take one at a time, or predict by the model itself, model(x) in eval mode."
        )
    return x


def own_data(model: Any) -> tuple[Tensor, Tensor]:
    """The training inputs (n, d), before any transform, and the targets (n,) of a model; (t, n) of several outputs."""
    if not is_plain(model):  # several inputs come as one tensor, for `output` and `hold`
        return packed(untransformed_inputs(model)), model.train_targets
    x, y = held_inputs(model), model.train_targets
    return (model._original_train_inputs if _holds_transformed(model) else x), y


def _holds_transformed(model: Any) -> bool:
    """Whether the inputs that the model holds have gone through its input transform: BoTorch's in eval mode."""
    return bool(getattr(model, "_has_transformed_inputs", False))


def given_data(model: Any, X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """X (n, d), before any transform, and y (n,), in the dtype and on the device of the model's parameters; y (t, n)
    for a model that holds targets of several outputs.

    Data that are not the model's own are an error where it has an outcome transform, or is more than one model of one
    output, and a FutureWarning elsewhere. Several inputs come as one tensor, for `output` and `hold`.
    """
    if not is_plain(model):
        return own_data_of_its_kind(model, X, y)
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    dtype = torch.get_default_dtype() if like is None else like.dtype
    device = torch.device("cpu") if like is None else like.device
    given = isinstance(X, Tensor) and X.is_floating_point()
    try:
        X = torch.as_tensor(X, device=device) if given else torch.as_tensor(X, dtype=dtype, device=device)
        y = torch.as_tensor(y, device=device).to(X.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Expected X and y as tensors or arrays of numbers. {error}") from error
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim == 2 and y.shape == (X.shape[0], 1) and hasattr(model, "num_outputs"):  # as BoTorch's users have it
        y = y[:, 0]
    if X.ndim == 2 and y.ndim == 2 and has_data(model) and y.shape == model.train_targets.shape[:1] + X.shape[:1]:
        return _compared(model, X, y)
    if X.ndim == 3 or (y.ndim == 2 and X.ndim == 2 and y.shape[0] == X.shape[0] and y.shape[1] > 1):
        raise UnsupportedModelError(
            f"Expected one model of one output, X (n, d) and y (n,). Got {tuple(X.shape)} and {tuple(y.shape)}: "
            "several outputs, or a batch of models, of which this model has none. Make a model that has them, or one "
            "for each, such as SingleTaskGP(X, Y[:, [0]])."
        )
    if X.ndim != 2 or y.ndim != 1 or X.shape[0] != y.shape[0]:
        raise InputError(
            "Expected X of shape (n, d) and y of shape (n,) with the same n. "
            f"Got {tuple(X.shape)} and {tuple(y.shape)}" + ("; pass y.reshape(-1)." if y.ndim == 2 else ".")
        )
    return _compared(model, X, y) if has_data(model) else (X, y)


def _compared(model: Any, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The same data, in the units of before any input transform, where they are the model's own."""
    own_x, own_y = own_data(model)
    if _holds_transformed(model) and _same(X, held_inputs(model)):
        X = own_x.to(X)
    same = _same(y, own_y), _same(X, own_x)
    if all(same):
        return X, y
    transform = outcome_transform_of(model)
    if transform is not None:
        raise InputError(
            f"Expected the model's own training data: it has an outcome transform ({transform}), and its targets are "
            f"not in the units of Y. Got other {'inputs' if same[0] else 'targets'}: pass model.train_inputs[0] and "
            "model.train_targets. To train on other data, make a model with them."
        )
    warnings.warn(
        f"The {'inputs' if same[0] else 'targets'} given to rtgp.fit differ from the model's own, which they replace. "
        "A later version will refuse them: call model.set_train_data(X, y, strict=False) first.",
        FutureWarning,
        stacklevel=4,
    )
    return X, y


def _same(given: Tensor, own: Tensor) -> bool:
    if given is own:
        return True
    if given.shape != own.shape:
        return False
    return bool(torch.allclose(given.double(), own.detach().to(given.device).double(), _SAME, _SAME, equal_nan=True))


def tensors_of(model: Any, likelihood: Any) -> Iterator[tuple[str, Tensor]]:
    """Everything that a prediction depends on, by name: parameters, buffers, data and noise."""
    for owner, module in (("model", model), ("likelihood", likelihood)):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield f"{owner}.{name}", tensor
    for i, x in enumerate(model.train_inputs or ()):
        yield f"train_inputs[{i}]", x
    if model.train_targets is not None:
        yield "train_targets", model.train_targets
    yield "noise", likelihood.noise  # known noise is neither a parameter nor a buffer


# Copies.


def copied(model: Any, likelihood: Any = None) -> tuple[Any, Any]:
    """Copies of a model and its likelihood that share what the two share, freed with their last reference.

    What a model keeps of earlier predictions holds autograd history, which cannot be copied: it is left out.
    """
    memo: dict[int, Any] = {}
    strategy = getattr(model, "prediction_strategy", None)
    if strategy is not None:
        memo[id(strategy)] = None
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        own, noise = copy.deepcopy((model, model.likelihood if likelihood is None else likelihood), memo)
    except RuntimeError as error:
        raise RTGPError(f"Expected a model that can be copied (copy.deepcopy). It cannot: {error}") from error
    return without_cycles(own), without_cycles(noise)


def on_subset(model: Any, likelihood: Any, X: Tensor, y: Tensor, index: Tensor) -> tuple[Any, Any, Tensor, Tensor]:
    """Float64 copies of a model and its likelihood that hold some of the points, and these points."""
    if not is_plain(model):
        raise UnsupportedModelError(
            "Expected one model of one output, of which some of the points can be taken. Got a batch of models, "
            "several tasks or several inputs: take a method that needs all points alone, such as rtgp.RRCG()."
        )
    own, noise = copied(model, likelihood)
    own.double().train(), noise.double().train()
    for module in own.modules():  # the range of the inputs is that of all points, or the units would be others
        if getattr(module, "learn_coefficients", False):
            module.learn_coefficients = False
    x, t = X[index].double(), y[..., index].double()
    own.set_train_data(x, t, strict=False)
    set_known_noise(noise, index)
    return own, noise, x, t


# Its noise.


def set_known_noise(likelihood: Any, index: Tensor) -> None:
    """Keep the known noise of some of the points; nothing changes where it is learned."""
    if isinstance(likelihood, FixedNoiseGaussianLikelihood):
        likelihood.noise_covar.noise = likelihood.noise_covar.noise[index]


def noise_level(likelihood: Any) -> Tensor:
    """All noise variances of the training points, known and learned, (1,) or (n,), without a graph."""
    noise: Tensor = likelihood.noise.detach()
    return noise


def noise_of_new(likelihood: Any, noise: Tensor | float | None, m: int) -> Tensor:
    """The noise variances of m new observations, () or (m,) float64.

    `noise` gives them where those of the training points are known.
    """
    if known_noise(likelihood) is None:
        if noise is not None:
            raise InputError("Expected no 'noise' with a GaussianLikelihood, whose own noise is used. Leave it out.")
        return noise_level(likelihood).double().reshape(())
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


# The whole.


@dataclass(frozen=True)
class Systems:
    """What a model's output on its training inputs comes to."""

    batches: tuple[Batch, ...]  # one for each model of a batch, in the order of its flattened shape
    shape: torch.Size  # () of a single model
    count: int  # targets of each model, missing ones included: what GPyTorch divides by


def read(model: Any, likelihood: Any, check: bool = True) -> Batch:
    """The prior of a model on the data it holds. Without `check` the caller looks for NaN."""
    dist = model.forward(held_inputs(model))
    return _only(read_systems(model, likelihood, dist, model.train_targets, check=check, prior=True))


def read_output(
    model: Any, likelihood: Any, dist: Any, target: Any, *params: Any, check: bool = True, **kwargs: Any
) -> Batch:
    """The same from the model's output on its training inputs, `model(train_x)`, and the targets."""
    return _only(read_systems(model, likelihood, dist, target, *params, check=check, **kwargs))


def _only(systems: Systems) -> Batch:
    if systems.shape.numel() != 1:
        raise UnsupportedModelError(
            f"Expected one model here. Got a batch of models, of shape {tuple(systems.shape)}: take one at a time."
        )
    return systems.batches[0]


def read_systems(
    model: Any,
    likelihood: Any,
    dist: Any,
    target: Any,
    *params: Any,
    check: bool = True,
    prior: bool = False,
    **kwargs: Any,
) -> Systems:
    """The systems behind a model's output on its training inputs and the targets. prior: whether the caller knows that
    the output is the prior, whatever mode the model is in."""
    _check_output(model, dist, prior)
    _check_target(model, target, dist)
    if isinstance(dist, SharedOutputs):
        return _read_shared_outputs(model, likelihood, dist, target, params, kwargs, check)
    noise, covariance = read_noise(model, likelihood, dist, params, kwargs), dist.lazy_covariance_matrix
    rows = Rows.of(dist, target)
    shapes = (dist.loc.shape[:-1], covariance.batch_shape, noise.variances.shape[:-1], rows.target.shape[:-1])
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    mean, y = (values.expand(*shape, rows.size) for values in (dist.loc, rows.target))
    batches = []
    for at in itertools.product(*map(range, shape)):
        form = read_covariance(covariance, at=at or None)
        batch = rows.observed_of(form, noise, at, mean[at], y[at])
        if check:
            _check_batch(model, batch, rows.kept(mean[at]), rows.kept(y[at]))
        batches.append(batch)
    return Systems(tuple(batches), shape, dist.event_shape.numel())


def _read_shared_outputs(
    model: Any, likelihood: Any, dist: SharedOutputs, target: Tensor, params: Any, kwargs: Any, check: bool
) -> Systems:
    """One system, whose right-hand sides are the outputs."""
    mean: Tensor = dist.mean
    covariance = dist.lazy_covariance_matrix
    if mean.ndim != 2 or not dist.islazy or covariance.ndim != 2:
        raise InputError(
            "Expected SharedOutputs of means (t, n) and one covariance (n, n), such as covar_module(x). Got means "
            f"of shape {tuple(mean.shape)} and a covariance of shape {tuple(covariance.shape)}."
        )
    if target.shape != mean.shape:
        raise InputError(
            f"Expected targets of shape {tuple(mean.shape)}, a row for each output. Got shape {tuple(target.shape)}."
        )
    noise = read_noise(model, likelihood, MultivariateNormal(mean[0], covariance), params, kwargs)
    batch = Batch(read_covariance(covariance), noise.at((), mean.shape[1]), (target - mean).T.contiguous())
    if check:
        _check_batch(model, batch, mean, target)
    return Systems((batch,), torch.Size(), mean.numel())


def _check_batch(model: Any, batch: Batch, mean: Tensor, target: Tensor) -> None:
    read = [*_inputs(model), mean, target, *batch.form.tensors, batch.noise.log()]
    if not _all_finite(read):  # one look at all of them; which it is, is asked where there is one
        check_inputs(model)
        _check_values(mean, target, batch.form, batch.noise)


def joint(
    model: Any, x: Tensor, x_new: Tensor, dtype: torch.dtype | None = None, transformed: bool = False
) -> tuple[Tensor, KernelForm]:
    """The prior mean of new points, (m,) or (m, t), and the form of the training points x followed by the new ones.

    For a model in eval mode, with x as the model holds them. transformed: whether the new points have gone through
    BoTorch's input transform already.
    """
    if hasattr(model, "transform_inputs") and not transformed:  # BoTorch
        m, x_new = x_new.shape[0], model.transform_inputs(x_new)
        if x_new.shape[:-1] != (m,):
            raise UnsupportedModelError(
                f"Expected an input transform that makes one point of each. Got shape {tuple(x_new.shape)} from {m} "
                "points: predict without InputPerturbation or AppendFeatures."
            )
    dist = model.forward(torch.cat([x, x_new]))
    mean, form = mean_of(dist), read_covariance(dist.lazy_covariance_matrix, dtype)
    if not _all_finite([mean, *form.tensors]):
        _check_values(mean, mean, form, mean.new_ones(()))
    return mean[..., x.shape[0] :].movedim(-1, 0), form


def mean_of(dist: Any) -> Tensor:
    """The mean (n,) of the output of one model; (t, n) of several outputs that share one covariance (n, n)."""
    mean: Tensor = dist.mean
    if mean.ndim != 1 and not isinstance(dist, SharedOutputs):
        raise UnsupportedModelError(
            f"Expected one model of one output, (n,). Got an output of shape {tuple(mean.shape)}, a batch of models or "
            "several tasks: predict by the model itself, model(x) in eval mode."
        )
    return mean


def _check_output(model: Any, dist: Any, prior: bool) -> None:
    if not isinstance(dist, MultivariateNormal):
        raise InputError(
            "Expected the model's output on its training inputs, a MultivariateNormal. "
            f"Got {type(dist).__name__} instead: call mll(model(train_x), train_y)."
        )
    if not model.training and not prior:
        raise InputError(
            "Expected the model's prior on its training inputs. The model is in eval mode, in which model(x) is "
            "the posterior: call model.train() before mll(model(train_x), train_y)."
        )


def refuse_several_outputs(model: Any, what: str) -> None:
    """Refuse a model of `SharedOutputs`. what: cannot be had of it, in words."""
    targets = own_data(model)[1]
    if targets.ndim != 1:
        raise UnsupportedModelError(
            f"Expected a model of one output for {what}. Got targets of shape {tuple(targets.shape)}: make a model for "
            "each output."
        )


def check_inputs(model: Any) -> None:
    for x in _inputs(model):
        if not bool(torch.isfinite(x).all()):
            where = ", ".join(str(i) for i in (~torch.isfinite(x)).nonzero()[0].tolist())
            raise InputError(
                f"Expected finite training inputs. Got NaN or infinity, first at [{where}]: drop those rows or fill "
                "the gaps before the model is made."
            )


def _inputs(model: Any) -> list[Tensor]:
    return [x for x in getattr(model, "train_inputs", None) or () if isinstance(x, Tensor)]


def _all_finite(tensors: list[Tensor]) -> bool:
    """Whether all values are finite: a sum of others is not. Waits for a card once."""
    sums = [tensor.detach().sum(dtype=torch.float64) for tensor in tensors]
    return bool(torch.isfinite(torch.stack(sums)).all())


def _check_target(model: Any, target: Any, dist: MultivariateNormal) -> None:
    if not isinstance(target, Tensor):
        raise InputError(
            f"Expected targets as a torch.Tensor. Got {type(target).__name__} instead: pass torch.as_tensor(train_y)."
        )
    if not target.is_floating_point():
        raise InputError(f"Expected targets of a floating-point dtype. Got {target.dtype}: pass train_y.to(train_x).")
    transform = outcome_transform_of(model)
    if transform is not None and has_data(model) and not _same(target, model.train_targets):
        raise InputError(
            f"Expected the model's own targets: it has an outcome transform ({transform}), and they are not in the "
            f"units of Y. Got others, of shape {tuple(target.shape)}: pass model.train_targets."
        )
    mean, event = dist.mean, dist.event_shape
    shapes = dist.loc.shape[:-1], dist.lazy_covariance_matrix.batch_shape
    batch = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    if target.shape[-len(event) :] != event or not _broadcast(target.shape[: -len(event)], batch):
        flat = target.numel() == mean.numel()
        raise InputError(
            f"Expected targets of shape {tuple(mean.shape)}, one for each training point. "
            f"Got shape {tuple(target.shape)}: "
            + ("pass train_y.reshape(-1)." if flat else "pass as many targets as the model has training points.")
        )


def _broadcast(shape: torch.Size, other: torch.Size) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(shape), reversed(other), strict=False))


def _check_values(mean: Tensor, target: Tensor, form: KernelForm, noise: Tensor) -> None:
    if not bool(torch.isfinite(mean).all()):
        raise InputError(
            "Expected a finite prior mean. Got NaN or infinity: a parameter of the mean has diverged. "
            "Lower the learning rate."
        )
    if not bool(torch.isfinite(target).all()):
        row = int((~torch.isfinite(target)).nonzero()[0, -1])
        raise InputError(
            f"Expected finite targets. Got NaN or infinity, first at row {row}: drop those rows, or leave out those "
            "that are NaN by gpytorch.settings.observation_nan_policy('mask')."
        )
    for tensor in form.tensors:
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                "Expected finite kernel inputs and parameters. Got NaN or infinity: a parameter has diverged, or "
                "the features that a network passes to the kernel have. Lower the learning rate, or constrain the "
                "parameter."
            )
    if not bool(((noise > 0) & torch.isfinite(noise)).all()):
        raise InputError(
            "Expected noise variances that are positive and finite. "
            f"Got values between {float(noise.detach().min()):.3g} and {float(noise.detach().max()):.3g}: "
            "give every point a positive noise, such as 1e-4 times the variance of the targets."
        )
