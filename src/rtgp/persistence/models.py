"""What a saved GPRegressor consists of. The files themselves, and why they can be trusted: `folder.py`."""

from __future__ import annotations

import math
import re
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtgp.datasets.dataset import Scaling
from rtgp.errors import InputError, RTGPError
from rtgp.memory import is_out_of_memory
from rtgp.methods import anywhere
from rtgp.modelling.model import KERNELS, named_kernel
from rtgp.modelling.preprocessing import Preprocessing
from rtgp.persistence.description import (
    describe_kernel,
    describe_settings,
    load_state,
    make_kernel,
    make_settings,
    state_without_priors,
)
from rtgp.persistence.families import describe_model, make_model, one_of
from rtgp.persistence.folder import damaged, read_folder, write_folder
from rtgp.provenance import __version__
from rtgp.training import FitResult, FitStatus, History

_PLAIN = ("steps", "learning_rate", "standardize", "verbose")
_FITTED = ("log_marginal_likelihood_value_", "log_marginal_likelihood_error_", "noise_variance_", "seed_", "dtype_")
_TABLES = ("hyperparameters_", "hyperparameter_errors_")
_DEVICE = re.compile(r"auto|cpu|(cuda|mps|xpu)(:\d{1,4})?")
_MOST_FEATURES = 10_000_000
_SENSELESS = (
    ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError, ValueError
)  # fmt: skip
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save_model(regressor: Any, folder: str | Path) -> None:
    """Write a fitted GPRegressor into a folder."""
    preprocessing: Preprocessing = regressor._preprocessing
    scaling = preprocessing.scaling
    family, facts, tensors = describe_model(regressor.model_)
    tensors |= {
        "columns": torch.from_numpy(preprocessing.columns.astype(np.int64)),
        "x_mean": torch.from_numpy(scaling.x_mean),
        "x_scale": torch.from_numpy(scaling.x_scale),
    }
    settings = {name: getattr(regressor, name) for name in _PLAIN}
    settings |= {
        "method": describe_settings(anywhere(regressor.method)),
        "device": str(regressor.device),
        "dtype": str(regressor.dtype).removeprefix("torch."),
        # An object with a state of its own: the seed that was drawn from it repeats this fit.
        "random_state": regressor.seed_ if hasattr(regressor.random_state, "randint") else regressor.random_state,
        "kernel": regressor.kernel,
    }
    kernel: Any = regressor.kernel
    if not isinstance(kernel, str):
        kernel = describe_kernel(one_of(regressor.model_).covar_module)
        settings["kernel"] = describe_kernel(regressor.kernel)
        tensors |= {f"kernel.{name}": value for name, value in state_without_priors(regressor.kernel).items()}
        if next(regressor.kernel.named_priors(), None) is not None:
            warnings.warn(
                "The priors of the kernel are not saved: predictions need none of them, but training the loaded "
                "estimator again will go without.",
                UserWarning,
                stacklevel=3,
            )
    names = getattr(regressor, "feature_names_in_", None)
    content = {
        "versions": {"rtgp": __version__, **{name: version(name) for name in ("torch", "gpytorch")}},
        "settings": settings,
        "kernel": kernel,
        "family": family,
        **facts,
        "n_features_in": regressor.n_features_in_,
        "feature_names_in": None if names is None else [str(name) for name in names],
        "y_mean": scaling.y_mean,
        "y_scale": scaling.y_scale,
        "fitted": {name: getattr(regressor, name) for name in _FITTED},
        "tables": {name: getattr(regressor, name) for name in _TABLES},
        "result": _describe_result(regressor.fit_result_),
    }
    write_folder(folder, content, tensors)


def load_model(folder: str | Path, regressor: Any, device: str | None = None) -> None:
    """Make an unfitted GPRegressor the one that was saved."""
    content, tensors = read_folder(folder)
    try:
        _check_numbers(content, tensors)
        _restore(regressor, content, tensors, device)
    except RTGPError as error:
        raise damaged(Path(folder), str(error).rstrip(".")) from error
    except _SENSELESS as error:
        if is_out_of_memory(error):
            raise
        what = f"its description makes no sense ({type(error).__name__}: {error!s:.300})"
        raise damaged(Path(folder), what) from error


def _restore(regressor: Any, content: dict[str, Any], tensors: dict[str, Tensor], device: str | None) -> None:
    saved = content["settings"]
    settings = {name: saved[name] for name in (*_PLAIN, "device", "dtype", "random_state")}
    settings["method"] = make_settings(saved["method"])
    if device is not None:
        settings["device"] = device
    elif settings["device"].startswith("cuda") and not torch.cuda.is_available():
        settings["device"] = "auto"  # trained where there was a GPU

    columns, d_in = tensors["columns"].numpy().astype(np.intp), int(content["n_features_in"])
    _check_columns(tensors, columns, d_in)
    dtype = _DTYPES.get(content["fitted"]["dtype_"])
    if dtype is None:
        raise InputError(f"a model of {content['fitted']['dtype_']!r:.40}.")
    kernel_state = {name.removeprefix("kernel."): t for name, t in tensors.items() if name.startswith("kernel.")}
    settings["kernel"] = _make_kernel(saved["kernel"], d_in, kernel_state)
    if not isinstance(settings["kernel"], str):
        load_state(settings["kernel"], kernel_state)

    state = {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
    kernel = _make_kernel(content["kernel"], len(columns), state)
    if isinstance(kernel, str):
        kernel = named_kernel(kernel, len(columns))
    model = make_model(content, tensors, state, kernel, len(columns), dtype)
    scaling = Scaling(
        tensors["x_mean"].numpy(), tensors["x_scale"].numpy(), float(content["y_mean"]), float(content["y_scale"])
    )

    regressor.set_params(**settings)
    regressor.n_features_in_ = d_in
    names = content["feature_names_in"]
    if names is not None:
        if len(names) != d_in:
            raise InputError(f"{len(names)} feature names for {d_in} columns.")
        regressor.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
    for name in _FITTED:
        setattr(regressor, name, content["fitted"][name])
    for name in _TABLES:
        setattr(regressor, name, {str(key): float(value) for key, value in content["tables"][name].items()})
    regressor._set_fitted(model, Preprocessing(columns, scaling), _make_result(content["result"]))


def _check_numbers(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """No NaN reaches a parameter, and no prediction is divided by nothing."""
    for name, tensor in tensors.items():
        bound = name.endswith(("lower_bound", "upper_bound"))  # of a constraint: may be infinite
        if bool((torch.isnan(tensor) if bound else ~torch.isfinite(tensor)).any()):
            raise InputError(f"{name:.80} holds NaN or infinity.")
    scales = [*tensors["x_scale"].reshape(-1).tolist(), float(content["y_scale"])]
    if not all(0.0 < scale < math.inf for scale in scales) or not math.isfinite(float(content["y_mean"])):
        raise InputError("a scale that is not positive and finite, or no finite mean.")
    for name in ("noise_variance_", "log_marginal_likelihood_value_", "log_marginal_likelihood_error_"):
        if type(content["fitted"][name]) not in (int, float):
            raise InputError(f"{name} = {content['fitted'][name]!r:.40}.")
    if not 0.0 <= content["fitted"]["noise_variance_"] < math.inf:
        raise InputError(f"a noise of variance {content['fitted']['noise_variance_']}.")
    if type(content["n_features_in"]) is not int or not 1 <= content["n_features_in"] <= _MOST_FEATURES:
        raise InputError(f"{content['n_features_in']!r:.40} input columns.")
    if type(content["fitted"]["seed_"]) is not int or not 0 <= content["fitted"]["seed_"] < 2**63:
        raise InputError(f"a seed of {content['fitted']['seed_']!r:.40}.")
    device = content["settings"]["device"]
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        raise InputError(f"a device {device!r:.40}.")


def _check_columns(tensors: dict[str, Tensor], columns: Any, d_in: int) -> None:
    d = len(columns)
    for name in ("columns", "x_mean", "x_scale"):
        if tuple(tensors[name].shape) != (d,) or d < 1:
            raise InputError(f"{name} of shape {tuple(tensors[name].shape)} for {d} columns.")
    if not ((columns >= 0) & (columns < d_in)).all():
        raise InputError(f"columns outside the {d_in} input columns.")


def _make_kernel(facts: Any, dimension: int, state: dict[str, Tensor]) -> Any:
    if isinstance(facts, str):
        if facts not in KERNELS:
            raise InputError(f"unknown kernel {facts!r:.80}.")
        return facts
    return make_kernel(facts, dimension, sum(tensor.numel() for tensor in state.values()))


def _describe_result(result: FitResult) -> dict[str, Any]:
    return {
        "history": result.history.rows,
        "status": result.status.value,
        "method": describe_settings(anywhere(result.method)),
        **{name: getattr(result, name) for name in _RESULT},
        "dtype": result.dtype,
        "ends": list(result.ends),
    }


_RESULT = ("method_reason", "optimizer", "steps", "seconds", "loss", "loss_error", "start", "message")


def _make_result(facts: dict[str, Any]) -> FitResult:
    return FitResult(
        history=History(facts["history"]),
        status=FitStatus(facts["status"]),
        method=make_settings(facts["method"]),
        **{name: facts[name] for name in _RESULT},
        dtype=str(facts.get("dtype", "")),  # neither is in models of version 0.1
        ends=tuple(map(float, facts.get("ends", ()))),
    )
