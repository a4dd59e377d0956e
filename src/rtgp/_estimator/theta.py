"""The log marginal likelihood as a function of theta, the logarithms of hyperparameters, as scikit-learn has it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from rtgp._estimator.fitting import is_exact
from rtgp._methods import Method, spread_operator
from rtgp._objectives.reading import copied, own_data, read
from rtgp.datasets._dataset import Array, Scaling
from rtgp.errors import SettingError
from rtgp.training import choose_method
from rtgp.training._history import LARGEST, hyperparameters


def check_has_theta(model: Any, method: Any) -> None:
    if not is_exact(model) or method.own_likelihood:
        raise SettingError(
            f"{type(method).__name__} has a likelihood of its own, not that of a Gaussian process on all rows. theta "
            "belongs to a model trained by 'cholesky', 'rr-cg', 'cg', 'rff' or 'ss-rff'."
        )


def theta_of(model: Any) -> tuple[tuple[str, ...], Array]:
    """Names and natural logarithms of the hyperparameters that are trained and positive: all but means and weights."""
    names: list[str] = []
    values: list[float] = []
    for labels, parameter, constraint in _positive(model):
        names += labels
        values += constraint.transform(parameter).detach().double().reshape(-1).log().tolist()
    return tuple(names), np.array(values)


def log_likelihood_at(
    model: Any, theta: Any, scaling: Scaling, method: Any, seed: int, gradient: bool
) -> tuple[float, Array]:
    """At theta, the other parameters as they are, and its gradient, () or (p,): by Cholesky where that is the cheaper,
    else by an estimate whose draws depend on the seed alone. The model is left as it is."""
    names, _ = theta_of(model)
    given = _checked(theta, names)
    own, likelihood = copied(model)
    own, likelihood = own.double().train(), likelihood.double().train()
    parts = list(_positive(own))
    pieces = torch.split(torch.from_numpy(given).exp(), [parameter.numel() for _, parameter, _ in parts])
    with torch.no_grad():
        for (labels, parameter, constraint), piece in zip(parts, pieces, strict=True):
            value = piece.reshape(parameter.shape).to(parameter)
            raw = constraint.inverse_transform(value)
            if not constraint.check(value) or not bool(torch.isfinite(raw).all()):
                raise SettingError(
                    f"theta puts '{labels[0]}' outside its bounds, {_words(constraint.lower_bound)} to "
                    f"{_words(constraint.upper_bound)}. Got {_words(value)}: theta holds natural logarithms."
                )
            parameter.copy_(raw)
    x = own_data(own)[0]
    chosen: Method = choose_method(x.shape[0], x.shape[1], x.device).method
    if not chosen.exact and spread_operator(method) != "auto":
        chosen = method
    objective = chosen.make_objective(frozen=True)
    try:
        with torch.set_grad_enabled(gradient):
            found = objective(read(own, likelihood), torch.Generator().manual_seed(seed))
        log_p = -float(found.value) - x.shape[0] * float(np.log(np.atleast_1d(scaling.y_scale)).sum())
        slopes = np.concatenate(list(_slopes(found.surrogate, parts))) if gradient else np.zeros(0)
    finally:
        objective.reset()
    return log_p, slopes


def _positive(model: Any) -> Iterator[tuple[list[str], Tensor, Any]]:
    """(names of its entries, parameter, constraint) of what is trained under a constraint that keeps it positive."""
    labels = iter(hyperparameters(model))  # in the order of the parameters
    for full, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        large = parameter.numel() > LARGEST  # recorded by its norm, and no part of theta
        names = list(itertools.islice(labels, 1 if large else parameter.numel()))
        path, _, own = full.rpartition(".")
        owner = model.get_submodule(path)
        constraint = owner.constraint_for_parameter_name(own) if isinstance(owner, gpytorch.Module) else None
        if not large and constraint is not None and bool((constraint.lower_bound >= 0).all()):
            yield names, parameter, constraint


def _checked(theta: Any, names: tuple[str, ...]) -> Array:
    try:
        given = np.asarray(theta, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.full(1, np.nan)
    if given.shape != (len(names),) or not np.isfinite(given).all():
        raise SettingError(
            f"Expected theta as {len(names)} finite numbers, the natural logarithms of {', '.join(names)} "
            f"(`theta_names_`). Got {theta!r:.80}."
        )
    return given


def _slopes(surrogate: Tensor, parts: list[tuple[list[str], Tensor, Any]]) -> Iterator[Array]:
    """d log p / d theta: the chain rule through the constraint and the logarithm."""
    parameters = [parameter for _, parameter, _ in parts]
    slopes = torch.autograd.grad(surrogate, parameters, allow_unused=True)
    for (_, parameter, constraint), slope in zip(parts, slopes, strict=True):
        with torch.enable_grad():
            value = constraint.transform(parameter)
            (own,) = torch.autograd.grad(value.sum(), parameter)
        raw = torch.zeros_like(parameter) if slope is None else slope
        yield (-raw * value / own).detach().double().cpu().reshape(-1).numpy()


def _words(value: Tensor) -> str:
    numbers = value.detach().double().reshape(-1).tolist()
    return f"{numbers[0]:.4g}" if len(set(numbers)) == 1 else str([float(f"{one:.4g}") for one in numbers])
