"""Several outputs: an estimator for each, or one model whose outputs share kernel and noise.

Estimators of their own are trained one after the other, each on the rows that have its target, so that training takes
the memory of one; those of the same rows share the tensor of inputs. Of the factors that predictions are made from no
more are kept than `OutputSettings` allows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from rtgp._estimator.fitting import is_exact
from rtgp._estimator.preprocessing import Preprocessing
from rtgp._methods import AnyMethod
from rtgp._objectives.reading import own_data
from rtgp.datasets._dataset import Array
from rtgp.errors import InputError, SettingError

INDEPENDENT, SHARED = "independent", "shared"


@dataclass(frozen=True)
class OutputSettings:
    """What is kept of several models. Chosen, not fitted.

    Attributes
    ----------
    kept : int
        Bytes that the factors of all outputs together may take from one prediction to the next.
    """

    kept: int = 2**28


DEFAULT = OutputSettings()


# Attributes that are lists, with an entry for each output, where each has a model of its own.
OF_EACH = (
    "model_", "likelihood_", "kernel_", "fit_result_", "history_", "method_", "method_reason_", "hyperparameters_",
    "dtype_",
)  # fmt: skip


class SeveralOutputs:
    """What a GPRegressor of several outputs has beside that of one."""

    estimators_: list[Any]
    _preprocessing: Any

    @property
    def n_outputs_(self) -> int:
        """How many outputs were fitted."""
        check_is_fitted(self)
        if hasattr(self, "estimators_"):
            return len(self.estimators_)
        return int(np.size(self._preprocessing.scaling.y_scale))

    def _set_each(self) -> Self:
        """The attributes of outputs with a model each: lists, but for what adds up and what they share."""
        each = self.estimators_
        for name in OF_EACH:
            setattr(self, name, [getattr(one, name) for one in each])
        self.noise_variance_ = np.array([one.noise_variance_ for one in each])
        self.log_marginal_likelihood_value_ = sum(one.log_marginal_likelihood_value_ for one in each)
        self.log_marginal_likelihood_error_ = math.hypot(*(one.log_marginal_likelihood_error_ for one in each))
        self.device_ = each[0].device_
        self.__dict__.pop("_preprocessing", None)  # of an earlier fit
        return self

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.target_tags.multi_output = True
        tags.input_tags.sparse = True
        return tags


def check_outputs_setting(value: Any) -> None:
    if value not in (INDEPENDENT, SHARED):
        raise SettingError(
            f"The 'outputs' parameter of GPRegressor must be '{INDEPENDENT}' (each output has hyperparameters of its "
            f"own) or '{SHARED}' (all have the same). Got {value!r} instead."
        )


def several_targets(y: Any) -> tuple[Array, tuple[str, ...]] | None:
    """Y (n, t), t > 1, with NaN where a target is missing, and its names; None where y is a single target."""
    given = _array(y)
    if given is None or given.ndim != 2 or given.shape[1] < 2:
        return None
    names = tuple(map(str, y.columns)) if hasattr(y, "columns") else tuple(f"y{k + 1}" for k in range(given.shape[1]))
    try:
        values = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Expected targets as numbers. {str(error).rstrip('.')}: encode them, or leave out."
        ) from error
    return values, names


def without_second_dimension(y: Any) -> Any:
    """y (n, 1) as y (n,); anything else as it is."""
    given = _array(y)
    return given[:, 0] if given is not None and given.ndim == 2 and given.shape[1] == 1 else y


def _array(y: Any) -> Any:
    """None where it is none; scikit-learn's check says why."""
    try:
        return None if y is None else np.asarray(y)
    except (TypeError, ValueError):
        return None


def check_targets(Y: Array, names: tuple[str, ...], outputs: str) -> None:
    """What an output cannot be learnt from, by name."""
    if np.isinf(Y).any():
        row, k = np.argwhere(np.isinf(Y))[0]
        raise InputError(
            f"y: row {row + 1} of output {names[k]!r} is {Y[row, k]}; a number, or NaN for none, was expected."
        )
    missing = np.isnan(Y)
    if outputs == SHARED and missing.any():
        (row, k), gaps = np.argwhere(missing)[0], int(missing.any(1).sum())
        raise InputError(
            f"Expected targets without gaps for outputs='{SHARED}', where one matrix serves all. Row {row + 1} of "
            f"output {names[k]!r} is missing (NaN): take outputs='{INDEPENDENT}', or leave out the {gaps} row(s) "
            "with gaps."
        )
    for k, name in enumerate(names):
        own = Y[~missing[:, k], k]
        if len(own) < 2:
            raise InputError(f"Expected at least two targets of output {name!r}. Got {len(own)}: leave the output out.")
        if own.max() == own.min():
            raise InputError(
                f"Expected a target that varies. Output {name!r} is {own[0]:g} in all {len(own)} rows: there is "
                "nothing to learn; leave the output out."
            )


def check_shared_method(method: AnyMethod) -> None:
    if not method.several_outputs or method.predictive_neighbours is not None:
        raise SettingError(
            f"{type(method).__name__} takes one output at a time. Got outputs='{SHARED}': take method='rr-cg', 'cg' or "
            f"'cholesky', or outputs='{INDEPENDENT}'."
        )


def noise_of_output(noise: Any, k: int, shape: tuple[int, ...], rows: npt.NDArray[np.bool_]) -> Any:
    """What `fit` was given as known noise, for one output: a number, one for each row, or one for each target."""
    if noise is None or np.ndim(noise) == 0:
        return noise
    given = np.asarray(noise)
    if given.shape not in ((shape[0],), shape):
        raise InputError(
            f"Expected known noise as one variance, one for each of {shape[0]} rows, or one for each target {shape}. "
            f"Got shape {given.shape}."
        )
    return (given if given.ndim == 1 else given[:, k])[rows]


def fit_each(regressor: Any, X: Array, Y: Array, noise: Any, checkpoint: str | os.PathLike[str] | None) -> list[Any]:
    """An estimator for each output, on the rows that have its target."""
    fitted: list[Any] = []
    whole: Preprocessing | None = None  # of the inputs, where no row is left out
    earlier = list(getattr(regressor, "estimators_", []))
    for k, observed in enumerate(~np.isnan(Y).T):
        one = clone(regressor).set_params(random_state=regressor.seed_)
        one.n_features_in_, one.seed_ = regressor.n_features_in_, regressor.seed_
        if hasattr(regressor, "feature_names_in_"):
            one.feature_names_in_ = regressor.feature_names_in_
        begins = earlier[k] if regressor.warm_start and len(earlier) == Y.shape[1] else None
        folder = None if checkpoint is None else Path(checkpoint) / f"output_{k + 1}"
        every = bool(observed.all())
        own_noise = noise_of_output(noise, k, Y.shape, observed)
        one._fit_one(X if every else X[observed], Y[observed, k], own_noise, folder, begins, whole if every else None)
        if every:
            whole = whole or one._preprocessing
            _share_inputs(fitted, one)
        fitted.append(one)
    return fitted


def _share_inputs(fitted: list[Any], one: Any) -> None:
    """Models on the same points hold one tensor of them."""
    if not is_exact(one.model_):
        return
    x, y = own_data(one.model_)
    for other in fitted:
        if is_exact(other.model_):
            same = own_data(other.model_)[0]
            if (same.shape, same.dtype, same.device) == (x.shape, x.dtype, x.device) and torch.equal(same, x):
                one.model_.set_train_data(same, y, strict=False)
                return


def in_turn(estimators: list[Any], settings: OutputSettings = DEFAULT) -> Iterator[Any]:
    """One output's estimator after the other, for a prediction. What it is made from is freed before the next, unless
    the factors of all are small."""
    sizes = [len(own_data(one.model_)[1]) if is_exact(one.model_) else 0 for one in estimators]
    for one in estimators:
        yield one
        if 8 * sum(n * n for n in sizes) > settings.kept:
            one._release()


def predict_each(
    estimators: list[Any], X: Array, return_std: bool, return_cov: bool, include_noise: bool
) -> Array | tuple[Array, Array]:
    """Means (m, t), with standard deviations (m, t) or covariances (m, m, t) on request."""
    found = [one._predict_one(X, return_std, return_cov, include_noise) for one in in_turn(estimators)]
    if not (return_std or return_cov):
        return np.stack(found, axis=-1)
    means, others = zip(*found, strict=True)
    return np.stack(means, axis=-1), np.stack(others, axis=-1)


def sample_each(estimators: list[Any], X: Array, n_samples: int, generator: torch.Generator, noise: bool) -> Array:
    """(m, t, n_samples)"""
    return np.stack([one._sample_one(X, n_samples, generator, noise) for one in in_turn(estimators)], axis=1)
