"""The three kinds of model as tensors and facts, and back: exact, variational, and a product of experts.

Every shape is held against the others before anything is made from it.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean
from torch import Tensor

from rtgp._baselines import ExpertsModel, VariationalModel
from rtgp._estimator.fitting import Model
from rtgp._estimator.model import RegressionModel, make_likelihood
from rtgp._methods.facts import EXACT, EXPERTS, VARIATIONAL
from rtgp._objectives.reading import known_noise, own_data
from rtgp._persistence.description import load_state, state_without_priors
from rtgp.errors import InputError, UnsupportedModelError

MOST_EXPERTS = 20_000  # each is a model of its own: some 50 KiB however few numbers it has in a file
Tensors = dict[str, Tensor]


def one_of(model: Model) -> Any:
    """The model, or the first of its experts, whose kernel has the structure of all of them."""
    return model.experts[0] if isinstance(model, ExpertsModel) else model


def describe_model(model: Model) -> tuple[str, dict[str, Any], Tensors]:
    """(family, facts, tensors) of a trained model."""
    if isinstance(model, VariationalModel):
        noise = known_noise(model.likelihood)
        tensors = _state(state_without_priors(model))
        if noise is not None:
            tensors["noise"] = noise
        return VARIATIONAL, {"noise_is_known": noise is not None, "jitter": model.jitter}, tensors
    if isinstance(model, ExpertsModel):
        if len(model) > MOST_EXPERTS:
            raise UnsupportedModelError(
                f"Cannot save {len(model)} experts: at most {MOST_EXPERTS} go into a file. Take a larger expert_size."
            )
        parts = [_describe_exact(expert) for expert in model]
        stacked = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        return EXPERTS, {"noise_is_known": "noise" in stacked}, stacked
    tensors = _describe_exact(model)
    return EXACT, {"noise_is_known": "noise" in tensors}, tensors


def make_model(
    content: dict[str, Any], tensors: Tensors, state: Tensors, kernel: Kernel, dimension: int, dtype: torch.dtype
) -> Model:
    """The model of a description. Without a family it is of an older format, which had exact models only."""
    family, known = content.get("family", EXACT), bool(content["noise_is_known"])
    data: Tensors = {name: tensors[name] for name in ("train_inputs", "train_targets", "noise") if name in tensors}
    if family == EXACT:
        return _make_exact(data, state, kernel, known, dimension, dtype)
    if family == VARIATIONAL:
        return _make_variational(content, data, state, kernel, known, dimension, dtype)
    if family == EXPERTS:
        counts = {tensor.shape[0] if tensor.ndim else 0 for tensor in (*data.values(), *state.values())}
        if len(counts) != 1 or not 1 <= min(counts) <= MOST_EXPERTS:
            raise InputError(f"tensors of {sorted(counts)[:10]} experts.")
        return ExpertsModel(
            [
                _make_exact(_at(data, k), _at(state, k), copy.deepcopy(kernel), known, dimension, dtype)
                for k in range(counts.pop())
            ]
        )
    raise InputError(f"unknown family of models {family!r:.80}.")


def targets_shape(model: Model) -> torch.Size:
    """() of one output, (t,) of several that share the model."""
    return own_data(model)[1].shape[:-1] if isinstance(model, RegressionModel) else torch.Size()


def _describe_exact(model: Any) -> Tensors:
    x, y = own_data(model)
    tensors = {"train_inputs": x, "train_targets": y}
    tensors |= _state(state_without_priors(model))
    noise = known_noise(model.likelihood)
    if noise is not None:
        tensors["noise"] = noise
    return tensors


def _make_exact(
    data: Tensors, state: Tensors, kernel: Kernel, known: bool, dimension: int, dtype: torch.dtype
) -> RegressionModel:
    x, y = data["train_inputs"], data["train_targets"]
    several = y.ndim == 2 and min(y.shape) > 1  # outputs that share the model
    if (
        x.ndim != 2
        or min(x.shape) < 1
        or x.shape[1] != dimension
        or y.shape[-1:] != x.shape[:1]
        or not (y.ndim == 1 or several)
    ):
        raise InputError(
            f"training inputs of shape {tuple(x.shape)} and targets of shape {tuple(y.shape)} for {dimension} columns."
        )
    if {x.dtype, y.dtype} != {dtype}:
        raise InputError(f"training data of {x.dtype} and {y.dtype} in a model of {dtype}.")
    if "noise" in data and data["noise"].shape != x.shape[:1]:
        raise InputError(f"noise of shape {tuple(data['noise'].shape)} for {len(x)} rows.")
    likelihood = _likelihood(data["noise"] if known else None, state)
    model: RegressionModel = RegressionModel(x, y, likelihood, kernel).to(x)
    load_state(model, state)
    return model


def _make_variational(
    content: dict[str, Any],
    data: Tensors,
    state: Tensors,
    kernel: Kernel,
    known: bool,
    dimension: int,
    dtype: torch.dtype,
) -> VariationalModel:
    inducing, jitter = state["variational_strategy.inducing_points"], float(content["jitter"])
    if inducing.ndim != 2 or inducing.shape[0] < 1 or inducing.shape[1] != dimension or inducing.dtype != dtype:
        raise InputError(
            f"inducing points of shape {tuple(inducing.shape)}, {inducing.dtype}, for {dimension} columns, {dtype}."
        )
    root = state["variational_strategy._variational_distribution.chol_variational_covar"]
    if root.shape != (len(inducing), len(inducing)):  # before as large a matrix is made
        raise InputError(f"a covariance of shape {tuple(root.shape)} for {len(inducing)} inducing points.")
    if not (math.isfinite(jitter) and jitter >= 0.0):
        raise InputError(f"a jitter of {jitter}.")
    if known and data["noise"].ndim != 1:
        raise InputError(f"noise of shape {tuple(data['noise'].shape)}.")
    likelihood = _likelihood(data["noise"] if known else None, state)
    model: VariationalModel = VariationalModel(inducing, likelihood, ConstantMean(), kernel, jitter).to(inducing)
    load_state(model, state)
    return model


def _likelihood(noise: Tensor | None, state: Tensors) -> Any:
    """With the kind of constraint that the state is of; its bounds are in the state."""
    upper = state.get("likelihood.noise_covar.raw_noise_constraint.upper_bound")
    between = upper is not None and bool(torch.isfinite(upper).all())
    return make_likelihood(noise, 0.0, (0.0, 1.0) if between else None)


def _state(state: Tensors) -> Tensors:
    return {f"state.{name}": value for name, value in state.items()}


def _at(tensors: Tensors, k: int) -> Tensors:
    return {name: tensor[k].clone() for name, tensor in tensors.items()}
