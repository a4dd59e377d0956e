"""From a method to a trained model of its kind: exact, variational, or a product of experts."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.models import ExactGP
from torch import Tensor

from rtgp._baselines import POE, SVGP, ExpertsModel, VariationalModel
from rtgp._baselines.poe.model import disjoint_subsets
from rtgp._baselines.poe.training import median_hyperparameters, train_experts
from rtgp._baselines.svgp.model import JITTER, kmeans_centres
from rtgp._baselines.svgp.training import train_variational
from rtgp._estimator.beginning import Beginning
from rtgp._estimator.model import RegressionModel, new_model
from rtgp._memory import enough_memory
from rtgp._methods import AnyMethod, Cholesky, likelihood_method
from rtgp._methods.facts import EXPERTS, VARIATIONAL
from rtgp._objectives.reading import held_inputs, set_known_noise
from rtgp._precision import SILENT, Notices
from rtgp.errors import SettingError
from rtgp.training import FitInterrupted, FitResult, fit, hyperparameters
from rtgp.training._choose_start import start_from_subset
from rtgp.training._fit import check_settings
from rtgp.training._problem import Problem
from rtgp.training._start import StartSettings

Model = RegressionModel | VariationalModel | ExpertsModel


@dataclass(frozen=True)
class Training:
    """How to train, whatever the method."""

    steps: int | None
    learning_rate: float | None
    seed: int
    progress: bool = False
    checkpoint: str | os.PathLike[str] | None = None
    restarts: int = 0
    silent: bool = False  # of the precision
    beginning: Beginning | None = None  # where hyperparameters begin, and their bounds


@dataclass(frozen=True)
class Data:
    """What to learn from, in working units."""

    x: Tensor  # (n, d)
    y: Tensor  # (n,); (t, n) of several outputs
    noise: Tensor | None  # (n,): known variances
    names: tuple[str, ...] | None = None  # of the columns of x

    @property
    def n(self) -> int:
        return self.x.shape[0]

    def to(self, dtype: torch.dtype) -> Data:
        return Data(
            self.x.to(dtype), self.y.to(dtype), None if self.noise is None else self.noise.to(dtype), self.names
        )


def train_model(data: Data, kernel: str | Kernel, method: AnyMethod, training: Training) -> tuple[Model, FitResult]:
    """The model that the method trains, in eval mode, and how training went."""
    notices = SILENT if training.silent else Notices()
    trainer = _TRAINERS.get(method.family)
    if trainer is not None:
        if training.restarts:
            raise SettingError(
                f"{type(method).__name__} trains from one start. Got n_restarts={training.restarts}: leave it out, or "
                "take a method that trains an exact Gaussian process, such as 'rr-cg'."
            )
        if training.checkpoint is not None:
            raise SettingError(
                f"{type(method).__name__} cannot be checkpointed: fit without a checkpoint, or by a method that trains "
                "an exact Gaussian process, such as 'rr-cg'."
            )
        check_settings(training.steps, training.learning_rate, training.seed)
        what = f"Training by {type(method).__name__} on {data.n:,} points"
        with enough_memory(what, method.memory_remedy(data.n, str(data.x.device))):
            return trainer(data, kernel, method, training, notices)
    model = new_model(data.x, data.y, kernel, data.noise, beginning=training.beginning, names=data.names)
    try:
        result = fit(
            model,
            model.likelihood,
            data.x,
            data.y,
            method=likelihood_method(method),
            steps=training.steps,
            learning_rate=training.learning_rate,
            seed=training.seed,
            checkpoint=training.checkpoint,
            progress=training.progress,
            restarts=training.restarts,
            _notices=notices,
        )
    except FitInterrupted as stop:
        stop.model = model
        raise
    return model, result


def reference(model: Any) -> Tensor:
    """A tensor whose dtype and device are those of the model's inputs."""
    if isinstance(model, VariationalModel):
        return model.inducing_points
    one = model.experts[0] if isinstance(model, ExpertsModel) else model
    return held_inputs(one)


def is_exact(model: Any) -> bool:
    """Whether the model is a Gaussian process given all the training data, so that its likelihood is its own."""
    return isinstance(model, ExactGP)


def _train_svgp(
    data: Data, kernel: str | Kernel, method: SVGP, training: Training, notices: Notices
) -> tuple[VariationalModel, FitResult]:
    x, y = data.x, data.y
    count = method.sizes(data.n)[0]  # first: it may be more than there are
    exact = new_model(x, y, kernel, data.noise, beginning=training.beginning, names=data.names)
    start = _start_on_a_subset(exact, data, training.seed)
    inducing = kmeans_centres(x, count, training.seed)
    jitter = JITTER[x.dtype] * float(y.double().var(correction=0))
    model = VariationalModel(inducing, exact.likelihood, exact.mean_module, exact.covar_module, jitter).to(x)
    start += f"; {len(inducing)} inducing points" + (" by k-means" if count < data.n else ": the rows themselves")
    how = training.steps, training.learning_rate, training.seed, start, training.progress
    return model, train_variational(model, x, y, method, *how, notices=notices)


def _train_poe(
    data: Data, kernel: str | Kernel, method: POE, training: Training, notices: Notices
) -> tuple[ExpertsModel, FitResult]:
    subsets = disjoint_subsets(data.n, method.size(data.n), training.seed).to(data.x.device)
    whole = new_model(data.x, data.y, kernel, data.noise, beginning=training.beginning, names=data.names)
    start = _start_on_a_subset(whole, data, training.seed)
    model = ExpertsModel([_expert(whole, data, index) for index in subsets])
    return model, train_experts(model, method, training.steps, training.learning_rate, start, training.progress)


_TRAINERS: dict[str, Callable[[Data, str | Kernel, Any, Training, Notices], tuple[Model, FitResult]]] = {
    VARIATIONAL: _train_svgp,
    EXPERTS: _train_poe,
}


def _expert(whole: RegressionModel, data: Data, index: Tensor) -> RegressionModel:
    expert = copy.deepcopy(whole)
    expert.set_train_data(data.x[index], data.y[index], strict=False)
    set_known_noise(expert.likelihood, index)
    return expert


def _start_on_a_subset(model: RegressionModel, data: Data, seed: int) -> str:
    """Hyperparameters fitted by Cholesky on at most 1000 of the points; what was done, in words."""
    problem = Problem(model.train(), model.likelihood.train(), data.x, data.y, Cholesky(), seed)
    return start_from_subset(problem, min(StartSettings().subset, data.n), seed)


def hyperparameters_of(model: Any) -> dict[str, float]:
    """name -> value in constrained units; of a product of experts the median over experts."""
    if isinstance(model, ExpertsModel):
        return median_hyperparameters(model)
    if isinstance(model, VariationalModel):
        return hyperparameters(model.hyperparameter_modules())
    return hyperparameters(model)
