"""From a method to a trained model of its kind: exact, variational, or a product of experts."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.models import ExactGP
from torch import Tensor

from rtgp.baselines import POE, SGGP, SVGP
from rtgp.errors import SettingError
from rtgp.memory import enough_memory, remedy_for
from rtgp.methods import AnyMethod, Cholesky
from rtgp.modelling.model import RegressionModel, new_model
from rtgp.models import ExpertsModel, VariationalModel
from rtgp.models.variational import JITTER
from rtgp.objectives.reading import held_inputs, set_known_noise
from rtgp.objectives.sggp import NEIGHBOURS, neighbours_for
from rtgp.training import FitInterrupted, FitResult, fit
from rtgp.training.begin import start_from_subset
from rtgp.training.experts import train_experts
from rtgp.training.fit import check_settings
from rtgp.training.problem import Problem
from rtgp.training.start import StartSettings
from rtgp.training.variational import train_variational

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


@dataclass(frozen=True)
class Data:
    """What to learn from, in working units."""

    x: Tensor  # (n, d)
    y: Tensor  # (n,)
    noise: Tensor | None  # (n,): known variances

    @property
    def n(self) -> int:
        return self.x.shape[0]

    def to(self, dtype: torch.dtype) -> Data:
        return Data(self.x.to(dtype), self.y.to(dtype), None if self.noise is None else self.noise.to(dtype))


def train_model(data: Data, kernel: str | Kernel, method: AnyMethod, training: Training) -> tuple[Model, FitResult]:
    """The model that the method trains, in eval mode, and how training went."""
    if isinstance(method, (SVGP, POE)):
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
        with enough_memory(what, remedy_for(method, data.n, str(data.x.device))):
            if isinstance(method, SVGP):
                return _train_svgp(data, kernel, method, training)
            return _train_poe(data, kernel, method, training)
    model = new_model(data.x, data.y, kernel, data.noise)
    try:
        result = fit(
            model,
            model.likelihood,
            data.x,
            data.y,
            method=method,
            steps=training.steps,
            learning_rate=training.learning_rate,
            seed=training.seed,
            checkpoint=training.checkpoint,
            progress=training.progress,
            restarts=training.restarts,
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


def clamped(method: AnyMethod, n: int) -> str:
    """What of the method's defaults was more than n points allow, in words; nothing if nothing was."""
    if isinstance(method, SVGP) and method.inducing is None and method.sizes(n)[0] == n:
        return f"as many inducing points as rows, {n:,}"
    if isinstance(method, POE) and method.expert_size is None and method.size(n) == n:
        return f"one expert of all {n:,} rows"
    if isinstance(method, SGGP) and method.neighbours is None and neighbours_for(None, n) < NEIGHBOURS:
        return f"the {n - 1:,} neighbours there are"
    return ""


def _train_svgp(
    data: Data, kernel: str | Kernel, method: SVGP, training: Training
) -> tuple[VariationalModel, FitResult]:
    x, y = data.x, data.y
    count = method.sizes(data.n)[0]  # first: it may be more than there are
    exact = new_model(x, y, kernel, data.noise)
    start = _start_on_a_subset(exact, data, training.seed)
    inducing = _kmeans(x, count, training.seed)
    jitter = JITTER[x.dtype] * float(y.double().var(correction=0))
    model = VariationalModel(inducing, exact.likelihood, exact.mean_module, exact.covar_module, jitter).to(x)
    start += f"; {len(inducing)} inducing points" + (" by k-means" if count < data.n else ": the rows themselves")
    how = training.steps, training.learning_rate, training.seed, start, training.progress
    return model, train_variational(model, x, y, method, *how)


def _train_poe(data: Data, kernel: str | Kernel, method: POE, training: Training) -> tuple[ExpertsModel, FitResult]:
    subsets = disjoint_subsets(data.n, method.size(data.n), training.seed).to(data.x.device)
    whole = new_model(data.x, data.y, kernel, data.noise)
    start = _start_on_a_subset(whole, data, training.seed)
    model = ExpertsModel([_expert(whole, data, index) for index in subsets])
    return model, train_experts(model, method, training.steps, training.learning_rate, start, training.progress)


def disjoint_subsets(n: int, size: int, seed: int) -> Tensor:
    """All n points in a random order, cut into subsets (k, size); the last is filled up from the first."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    missing = -n % size
    return torch.cat([order, order[:missing]]).reshape(-1, size)


def _expert(whole: RegressionModel, data: Data, index: Tensor) -> RegressionModel:
    expert = copy.deepcopy(whole)
    expert.set_train_data(data.x[index], data.y[index], strict=False)
    set_known_noise(expert.likelihood, index)
    return expert


def _start_on_a_subset(model: RegressionModel, data: Data, seed: int) -> str:
    """Hyperparameters fitted by Cholesky on at most 1000 of the points; what was done, in words."""
    problem = Problem(model.train(), model.likelihood.train(), data.x, data.y, Cholesky(), seed)
    return start_from_subset(problem, min(StartSettings().subset, data.n), seed)


def _kmeans(x: Tensor, count: int, seed: int) -> Tensor:
    """Centres of `count` clusters; the points themselves if that many are asked for. Each once: two equal inducing
    points would say the same, and make K(Z, Z) singular."""
    if count == x.shape[0]:
        rows: Tensor = torch.unique(x, dim=0)
        return rows
    from sklearn.cluster import MiniBatchKMeans

    # A fixed number of passes: no criterion whose sums depend on the number of threads decides when to end.
    found = MiniBatchKMeans(
        count, batch_size=4096, max_iter=10, tol=0.0, max_no_improvement=None, n_init=1, random_state=seed
    ).fit(x.detach().double().cpu().numpy())
    centres: Tensor = torch.unique(torch.as_tensor(found.cluster_centers_).to(x), dim=0)
    return centres
