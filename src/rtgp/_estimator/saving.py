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

from rtgp._estimator.beginning import NAMES, Beginning
from rtgp._estimator.families import describe_model, make_model, one_of, targets_shape
from rtgp._estimator.fitting import hyperparameters_of
from rtgp._estimator.kernel_words import parse
from rtgp._estimator.model import KERNELS, is_of_sklearn, named_kernel
from rtgp._estimator.preprocessing import Preprocessing, TargetScaling
from rtgp._kernels.names import name_inputs
from rtgp._memory import is_out_of_memory
from rtgp._methods import on_one_process
from rtgp._persistence.description import (
    describe_kernel,
    describe_settings,
    load_state,
    make_kernel,
    make_settings,
    state_without_priors,
)
from rtgp._persistence.folder import PLAIN_VERSION, VERSION, damaged, read_folder, write_folder
from rtgp._precision import DTYPES
from rtgp._provenance import __version__
from rtgp.datasets._dataset import Scaling
from rtgp.errors import InputError, RTGPError
from rtgp.tables import TableEncoder
from rtgp.training import FitResult, FitStatus, History

_PLAIN = ("steps", "learning_rate", "standardize", "verbose")
_LATER = ("outputs", "warm_start", *NAMES)  # not in models of earlier versions
_FITTED = ("log_marginal_likelihood_value_", "log_marginal_likelihood_error_", "noise_variance_", "seed_", "dtype_")
# By the name in a file: where a loaded estimator holds it.
_TABLES = {"hyperparameters_": "hyperparameters_", "hyperparameter_errors_": "_errors"}
_DEVICE = re.compile(r"auto|cpu|(cuda|mps|xpu)(:\d{1,4})?")
_MOST_FEATURES = 10_000_000
_MOST_OUTPUTS = 100_000
_SENSELESS = (
    ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError, ValueError
)  # fmt: skip


def save_model(regressor: Any, folder: str | Path) -> None:
    """Write a fitted GPRegressor into a folder."""
    if not hasattr(regressor, "estimators_"):
        content, tensors = _describe(regressor)
        newest = regressor.n_outputs_ > 1 or _bounded(one_of(regressor.model_))
        write_folder(folder, content, tensors, VERSION if newest else PLAIN_VERSION)
        return
    contents, tensors = [], {}
    inputs: Tensor | None = None
    for k, one in enumerate(regressor.estimators_):
        content, own = _describe(one)
        if inputs is not None and own.get("train_inputs") is inputs:
            del own["train_inputs"]  # those of an earlier output
        inputs = own.get("train_inputs", inputs)
        contents.append(content)
        tensors |= {f"output_{k + 1}.{name}": tensor for name, tensor in own.items()}
    kernel = contents[0]["settings"]["kernel"]
    shared = {"settings": {**_settings(regressor), "kernel": kernel}, **_inputs_of(regressor)}
    content = {"versions": contents[0]["versions"], "each": contents, "seed": regressor.seed_, **shared}
    write_folder(folder, content, tensors, VERSION)


def _settings(regressor: Any) -> dict[str, Any]:
    """All but the kernel."""
    return {
        **{name: getattr(regressor, name) for name in _PLAIN},
        **{name: _listed(getattr(regressor, name)) for name in _LATER},
        "method": describe_settings(on_one_process(regressor.method)),
        "device": str(regressor.device),
        "dtype": str(regressor.dtype).removeprefix("torch."),
        # An object with a state of its own: the seed that was drawn from it repeats this fit.
        "random_state": regressor.seed_ if hasattr(regressor.random_state, "randint") else regressor.random_state,
    }


def _inputs_of(regressor: Any) -> dict[str, Any]:
    names = getattr(regressor, "feature_names_in_", None)
    return {
        "n_features_in": regressor.n_features_in_,
        "feature_names_in": None if names is None else [str(name) for name in names],
    }


def _listed(value: Any) -> Any:
    """Numbers, arrays and pairs of these as JSON has them."""
    if isinstance(value, (tuple, list)):
        return [_listed(one) for one in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _raw_noises(model: Any) -> list[Tensor]:
    """The parameters of a noise that is learned, or fixed."""
    return [parameter for name, parameter in model.named_parameters() if name.endswith("noise_covar.raw_noise")]


def _bounded(model: Any) -> bool:
    """Whether it has bounds that earlier versions did not know: of the noise from above, of entries by themselves."""
    noise = getattr(getattr(model.likelihood, "noise_covar", None), "raw_noise_constraint", None)
    between = noise is not None and bool(torch.isfinite(noise.upper_bound).all())
    return between or any(one.lower_bound.ndim > 0 for _, one in model.covar_module.named_constraints())


def _describe(regressor: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Of one model, in JSON data and tensors."""
    preprocessing: Preprocessing = regressor._preprocessing
    scaling = preprocessing.scaling
    family, facts, tensors = describe_model(regressor.model_)
    tensors |= {
        "columns": torch.from_numpy(preprocessing.columns.astype(np.int64)),
        "x_mean": torch.from_numpy(scaling.x_mean),
        "x_scale": torch.from_numpy(scaling.x_scale),
    }
    settings = {**_settings(regressor), "kernel": regressor.kernel}
    kernel, bounds = regressor.kernel, (regressor.lengthscale_bounds, regressor.outputscale_bounds)
    if isinstance(kernel, str) and (kernel not in KERNELS or any(one is not None for one in bounds)):
        kernel = describe_kernel(one_of(regressor.model_).covar_module)  # words, or constraints that are not its name's
    if not isinstance(kernel, str) and not isinstance(regressor.kernel, str):
        # One of scikit-learn's is saved as what it was translated to.
        own = regressor.kernel
        if is_of_sklearn(own):
            from rtgp._estimator.sklearn_kernels import translated

            own, _ = translated(own, regressor.n_features_in_, Beginning())
        kernel = describe_kernel(one_of(regressor.model_).covar_module)
        settings["kernel"] = describe_kernel(own)
        tensors |= {f"kernel.{name}": value for name, value in state_without_priors(own).items()}
        if next(own.named_priors(), None) is not None:
            warnings.warn(
                "The priors of the kernel are not saved: predictions need none of them, but training the loaded "
                "estimator again will go without.",
                UserWarning,
                stacklevel=3,
            )
    content = {
        "versions": {"rtgp": __version__, **{name: version(name) for name in ("torch", "gpytorch")}},
        "settings": settings,
        "kernel": kernel,
        "family": family,
        **facts,
        "noise_is_fixed": any(not raw.requires_grad for raw in _raw_noises(regressor.model_)),
        **_inputs_of(regressor),
        "y_mean": _listed(scaling.y_mean),
        "y_scale": _listed(scaling.y_scale),
        "fitted": {name: _listed(getattr(regressor, name)) for name in _FITTED},
        "tables": {name: getattr(regressor, name) for name in _TABLES},
        "result": _describe_result(regressor.fit_result_),
    }
    encoder = getattr(regressor, "table_encoder_", None)
    if encoder is not None:  # how its inputs were made of a table
        content["table"] = encoder.describe()
    return content, tensors


def load_model(folder: str | Path, regressor: Any, device: str | None = None) -> None:
    """Make an unfitted GPRegressor the one that was saved."""
    content, tensors = read_folder(folder)
    try:
        if "each" in content:
            _restore_each(regressor, content, tensors, device)
        else:
            _check_numbers(content, tensors)
            _restore(regressor, content, tensors, device)
    except RTGPError as error:
        raise damaged(Path(folder), str(error).rstrip(".")) from error
    except _SENSELESS as error:
        if is_out_of_memory(error):
            raise
        what = f"its description makes no sense ({type(error).__name__}: {error!s:.300})"
        raise damaged(Path(folder), what) from error


def _restore_each(regressor: Any, content: dict[str, Any], tensors: dict[str, Tensor], device: str | None) -> None:
    estimators: list[Any] = []
    inputs: dict[str, Tensor] = {}
    if not 2 <= len(content["each"]) <= _MOST_OUTPUTS:
        raise InputError(f"{len(content['each'])} outputs.")
    for k, described in enumerate(content["each"]):
        prefix, one = f"output_{k + 1}.", type(regressor)()
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        own = {**inputs, **own}
        inputs = {name: own[name] for name in ("train_inputs",) if name in own}
        _check_numbers(described, own)
        _restore(one, described, own, device)
        estimators.append(one)
    first = estimators[0]
    if any(one.n_features_in_ != first.n_features_in_ for one in estimators):
        raise InputError("outputs of other numbers of columns.")
    regressor.set_params(**{**first.get_params(deep=False), **_later(content["settings"])})
    regressor.set_params(random_state=content["settings"]["random_state"])
    regressor.n_features_in_, regressor.seed_ = first.n_features_in_, int(content["seed"])
    if hasattr(first, "feature_names_in_"):
        regressor.feature_names_in_ = first.feature_names_in_
    regressor.estimators_ = estimators
    regressor._set_each()


def _later(saved: dict[str, Any]) -> dict[str, Any]:
    """Settings that earlier versions had not, as far as they are there."""
    settings = {name: saved[name] for name in _LATER if name in saved}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _restore(regressor: Any, content: dict[str, Any], tensors: dict[str, Tensor], device: str | None) -> None:
    saved = content["settings"]
    settings = {name: saved[name] for name in (*_PLAIN, "device", "dtype", "random_state")} | _later(saved)
    settings["method"] = make_settings(saved["method"])
    if device is not None:
        settings["device"] = device
    elif settings["device"].startswith("cuda") and not torch.cuda.is_available():
        settings["device"] = "auto"  # trained where there was a GPU

    columns, d_in = tensors["columns"].numpy().astype(np.intp), int(content["n_features_in"])
    _check_columns(tensors, columns, d_in)
    dtype = DTYPES.get(content["fitted"]["dtype_"])
    if dtype is None:
        raise InputError(f"a model of {content['fitted']['dtype_']!r:.40}.")
    kernel_state = {name.removeprefix("kernel."): t for name, t in tensors.items() if name.startswith("kernel.")}
    settings["kernel"] = _make_setting(saved["kernel"], d_in, kernel_state)
    if not isinstance(settings["kernel"], str):
        load_state(settings["kernel"], kernel_state)

    state = {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
    kernel = _make_kernel(content["kernel"], len(columns), state)
    if isinstance(kernel, str):
        kernel = named_kernel(kernel, len(columns))
    model = make_model(content, tensors, state, kernel, len(columns), dtype)
    if content.get("noise_is_fixed", False) is True:
        for raw in _raw_noises(model):
            raw.requires_grad_(False)
    y_mean, y_scale = (np.array(content[name], dtype=np.float64) for name in ("y_mean", "y_scale"))
    if y_mean.shape != y_scale.shape or y_mean.shape != targets_shape(model):
        raise InputError(f"{y_mean.size} means and {y_scale.size} scales of targets.")
    x_scaling = tensors["x_mean"].numpy(), tensors["x_scale"].numpy()
    scaling = (
        TargetScaling(*x_scaling, y_mean, y_scale)
        if y_mean.ndim
        else Scaling(*x_scaling, float(y_mean), float(y_scale))
    )

    regressor.set_params(**settings)
    regressor.n_features_in_ = d_in
    names = content["feature_names_in"]
    if names is not None:
        if len(names) != d_in:
            raise InputError(f"{len(names)} feature names for {d_in} columns.")
        regressor.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
    if content.get("table") is not None:
        regressor.table_encoder_ = _encoder_for(content["table"], names)
    for name in _FITTED:
        setattr(regressor, name, content["fitted"][name])
    if y_mean.ndim:
        regressor.noise_variance_ = np.array(regressor.noise_variance_, dtype=np.float64).reshape(y_mean.shape)
    preprocessing = Preprocessing(columns, scaling)
    for part in getattr(model, "experts", [model]):
        name_inputs(part.covar_module, regressor._input_names(preprocessing))
    renamed = _renamed(content["tables"]["hyperparameters_"], model)
    for name, attribute in _TABLES.items():
        table = {renamed.get(key, str(key)): float(value) for key, value in content["tables"][name].items()}
        setattr(regressor, attribute, table)
    regressor._set_fitted(model, preprocessing, _make_result(content["result"], renamed))


def _renamed(saved: dict[str, Any], model: Any) -> dict[str, str]:
    """What an earlier version called a hyperparameter -> what it is called now; they stand in the same order."""
    now = list(hyperparameters_of(model))
    return dict(zip(map(str, saved), now, strict=True)) if len(now) == len(saved) else {}


def _encoder_for(facts: Any, names: Any) -> TableEncoder:
    encoder = TableEncoder.from_description(facts)
    if names is None or list(encoder.get_feature_names_out()) != [str(name) for name in names]:
        raise InputError("a table with other columns than the model's inputs.")
    return encoder


def _check_numbers(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """No NaN reaches a parameter, and no prediction is divided by nothing."""
    for name, tensor in tensors.items():
        bound = name.endswith(("lower_bound", "upper_bound"))  # of a constraint: may be infinite
        if bool((torch.isnan(tensor) if bound else ~torch.isfinite(tensor)).any()):
            raise InputError(f"{name:.80} holds NaN or infinity.")
    scales = [*tensors["x_scale"].reshape(-1).tolist(), *map(float, np.ravel(content["y_scale"]))]
    if not all(0.0 < scale < math.inf for scale in scales) or not np.isfinite(np.ravel(content["y_mean"])).all():
        raise InputError("a scale that is not positive and finite, or no finite mean.")
    variances = content["fitted"]["noise_variance_"]
    variances = variances if isinstance(variances, list) else [variances]  # one for each output
    others = ("log_marginal_likelihood_value_", "log_marginal_likelihood_error_")
    for name, value in [("noise_variance_", v) for v in variances] + [(n, content["fitted"][n]) for n in others]:
        if type(value) not in (int, float):
            raise InputError(f"{name} = {value!r:.40}.")
    if not all(0.0 <= variance < math.inf for variance in variances):
        raise InputError(f"a noise of variance {content['fitted']['noise_variance_']!r:.40}.")
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


def _make_setting(facts: Any, dimension: int, state: dict[str, Tensor]) -> Any:
    """A name, words, or a kernel object."""
    if isinstance(facts, str) and facts not in KERNELS:
        parse(facts)
        return facts
    return _make_kernel(facts, dimension, state)


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
        "method": describe_settings(on_one_process(result.method)),
        **{name: getattr(result, name) for name in _RESULT},
        "dtype": result.dtype,
        "ends": list(result.ends),
    }


_RESULT = ("method_reason", "optimizer", "steps", "seconds", "loss", "loss_error", "start", "message")


def _make_result(facts: dict[str, Any], renamed: dict[str, str]) -> FitResult:
    rows = [{renamed.get(name, name): value for name, value in row.items()} for row in facts["history"]]
    return FitResult(
        history=History(rows),
        status=FitStatus(facts["status"]),
        method=make_settings(facts["method"]),
        **{name: facts[name] for name in _RESULT},
        dtype=str(facts.get("dtype", "")),  # neither is in models of version 0.1
        ends=tuple(map(float, facts.get("ends", ()))),
    )
