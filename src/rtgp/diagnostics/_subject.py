"""What is to be diagnosed: a model with its training data, from a model, a fitted estimator, or bare data."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean
from gpytorch.models import GP, ExactGP
from torch import Tensor

from rtgp._kernels.names import name_inputs
from rtgp._methods import Cholesky
from rtgp._objectives.reading import (
    check_model,
    check_one_output,
    copied,
    has_data,
    own_data,
    read,
    refuse_several_outputs,
)
from rtgp._ownership import without_cycles
from rtgp._precision import DTYPES, SILENT
from rtgp._solvers import NoiseUnits
from rtgp.datasets import Dataset
from rtgp.diagnostics._settings import DEFAULT, SubjectSettings
from rtgp.errors import InputError, SettingError, UnsupportedModelError
from rtgp.operators import make_from_form
from rtgp.training import fit


@dataclass(frozen=True)
class Subject:
    """A private copy of a model in training mode, its data, and where its hyperparameters come from."""

    model: Any
    X: Tensor
    y: Tensor
    origin: str

    def to(self, dtype: torch.dtype) -> Subject:
        """The same in another precision."""
        model = copied(self.model)[0].to(dtype)
        X, y = self.X.to(dtype), self.y.to(dtype)
        model.set_train_data(X, y, strict=False)
        return Subject(model, X, y, self.origin)


def read_subject(
    subject: Any,
    y: Any,
    kernel: Kernel | None,
    dtype: str | None,
    seed: int,
    settings: SubjectSettings = DEFAULT.subject,
) -> Subject:
    """A GPyTorch model, anything fitted that holds one as `model_`, a Dataset, or X with y."""
    held = getattr(subject, "model_", None)
    model = held if isinstance(held, GP) else subject
    if isinstance(model, GP):
        for name, given in (("y", y), ("kernel", kernel), ("dtype", dtype)):
            if given is not None:
                own = "the model's own likelihood is" if isinstance(given, Likelihood) else "its own are"
                raise InputError(
                    f"Expected a model alone, rtgp.diagnose(model). Got '{name}' too: {own} used. "
                    "To diagnose it on other data, call model.set_train_data first."
                )
        return _of_model(model)
    if isinstance(held, list):
        raise UnsupportedModelError(
            f"Expected an estimator of one output. Got {len(held)} with a model each: diagnose one of them, such as "
            "rtgp.diagnose(gp.estimators_[0])."
        )
    if not isinstance(subject, Dataset) and (isinstance(subject, torch.nn.Module) or hasattr(subject, "get_params")):
        raise UnsupportedModelError(
            "Expected a gpytorch.models.ExactGP, a fitted rtgp.GPRegressor, a Dataset, or X and y. "
            f"Got {type(subject).__name__}" + (": fit it first." if hasattr(subject, "get_params") else ".")
        )
    return _of_data(subject, y, kernel, dtype, seed, settings)


def _of_model(model: Any) -> Subject:
    if not isinstance(model, ExactGP):
        raise UnsupportedModelError(f"Expected a gpytorch.models.ExactGP. Got {type(model).__name__}.")
    if not has_data(model):
        raise InputError(
            "Expected a model with training data, which is what it is diagnosed on. It has none: call "
            "model.set_train_data(X, y, strict=False) first."
        )
    check_model(model, model.likelihood, "rtgp.diagnose(model)")
    check_one_output(model, model.likelihood, "rtgp.diagnose", predicts=False)
    refuse_several_outputs(model, "a diagnosis")
    own = copied(model)[0].train()
    X, y = own_data(own)
    return Subject(own, X, y, "the model's present ones")


def _array(given: Any) -> Any:
    return given.detach().cpu().numpy() if isinstance(given, Tensor) else given


class _Regression(ExactGP):
    def __init__(self, x: Tensor, y: Tensor, likelihood: GaussianLikelihood, kernel: Kernel) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = ConstantMean()
        self.covar_module = kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def _of_data(
    subject: Any, y: Any, kernel: Kernel | None, dtype: str | None, seed: int, settings: SubjectSettings
) -> Subject:
    if isinstance(subject, Dataset):
        if y is not None:
            raise InputError("Expected a Dataset alone: it holds its target. Got 'y' too; leave it out.")
        data = subject
    elif y is None:
        raise InputError(
            "Expected rtgp.diagnose(model), rtgp.diagnose(dataset) or rtgp.diagnose(X, y). "
            f"Got {type(subject).__name__} without y."
        )
    else:
        data = Dataset(_array(subject), _array(y))
    if len(data) < 3 or data.y.min() == data.y.max():
        raise InputError(f"Expected at least 3 rows and a target that varies. Got {len(data)} row(s) of {data.name!r}.")
    if kernel is not None and not isinstance(kernel, Kernel):
        raise SettingError(f"The 'kernel' parameter must be a GPyTorch kernel or None. Got {kernel!r:.80} instead.")
    if dtype not in (None, *DTYPES):
        raise SettingError(f"The 'dtype' parameter must be 'float32' or 'float64'. Got {dtype!r} instead.")
    working = DTYPES[dtype or "float32"]
    standard = data.standardised()
    X, target = torch.tensor(standard.X, dtype=working), torch.tensor(standard.y, dtype=working)
    n = len(data)
    index = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: settings.rows]
    made = ScaleKernel(RBFKernel(ard_num_dims=X.shape[1])) if kernel is None else copy.deepcopy(kernel)
    if isinstance(subject, Dataset) and not subject.unnamed:
        name_inputs(made, subject.feature_names)
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(settings.noise_floor))
    model = without_cycles(_Regression(X[index], target[index], likelihood, made).to(working))
    with torch.no_grad():
        likelihood.noise = math.log(2.0)
    result = fit(
        model, likelihood, X[index], target[index], Cholesky(), steps=settings.steps, seed=seed,
        tolerance=settings.tolerance, _notices=SILENT,
    )  # fmt: skip
    model.set_train_data(X, target, strict=False)
    rows = f"all {n}" if n <= settings.rows else f"{settings.rows} of {n}"
    origin = f"fitted by Cholesky on {rows} rows, standardised ({result.steps} steps)"
    return Subject(model.train(), X, target, origin)


class SubjectSystem:
    """K + noise at the hyperparameters of a subject, in units of the noise, and y less the mean."""

    def __init__(self, subject: Subject) -> None:
        batch = read(subject.model, subject.model.likelihood)
        self.system = NoiseUnits(make_from_form(batch.form), batch.noise.detach())
        residual = batch.residual.detach()[:, None].to(self.system.dtype)
        self.target = self.system.scaled(residual)  # (n, 1)
