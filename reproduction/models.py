"""Data, models and the exact objective, as the items use them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reproduction.spec import CellUnfinishedError, Setting
from rtgp import datasets
from rtgp._estimator.model import RegressionModel, new_model
from rtgp._methods import Cholesky, Method
from rtgp._mll import MarginalLogLikelihood
from rtgp.errors import ApproximationWarning, RTGPError
from rtgp.training import FitResult, fit
from rtgp.training._result import FitStatus

State = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    """A training part and a test part, standardised on the training part of the whole set."""

    x: Tensor  # (n, d)
    y: Tensor  # (n,)
    x_test: Tensor
    y_test: Tensor


def load(setting: Setting, name: str, split: int, n: int | None = None, dtype: torch.dtype = torch.float64) -> Data:
    """64/16/20 by the split's seed; the first n rows of the training part, which is in random order.

    Inputs that are constant in these rows are left out: no kernel can tell anything from them.
    """
    train, _, test = datasets.load(name, setting.data_dir).split(split)
    told = np.ptp(train.X[:n], axis=0) > 0
    parts = (train.X[:n, told], train.y[:n], test.X[:, told], test.y)
    return Data(*(torch.tensor(part, dtype=dtype, device=setting.device) for part in parts))


def exact_objective(model: RegressionModel, state: State | None = None) -> float:
    """The exact negative log marginal likelihood per point, by Cholesky in float64."""
    twin = twin_in_float64(model, state)
    with torch.no_grad():
        mll = MarginalLogLikelihood(twin.likelihood, twin, Cholesky())
        return -float(mll(twin(*twin.train_inputs), twin.train_targets))


def twin_in_float64(model: RegressionModel, state: State | None = None) -> RegressionModel:
    """A model of its own on the same data, at the same parameters or those of `state`."""
    x, y = model.train_inputs[0].double(), model.train_targets.double()
    twin = new_model(x, y, model.covar_module, None)
    twin.load_state_dict(model.state_dict() if state is None else state)
    twin.double().train()
    return twin


def fitted_exactly(x: Tensor, y: Tensor, kernel: Any = "rbf") -> RegressionModel:
    """A model at the optimum of its exact objective (L-BFGS, float64), in training mode."""
    model = new_model(x, y, kernel, None)
    fit(model, model.likelihood, x, y, Cholesky(), "lbfgs")
    model.train()
    return model


@dataclass(frozen=True)
class Path:
    """Where a training run has been: the states after chosen steps, the last one included."""

    steps: tuple[int, ...]
    states: tuple[State, ...]
    seconds: float
    ended: str  # "", or why it ended early


def train(
    model: RegressionModel,
    method: Method,
    optimizer: Any,
    steps: int,
    learning_rate: float,
    seed: int,
    every: int,
    setting: Setting,
) -> Path:
    """Train by Adam from where the model is and keep a state every `every` steps. A breakdown ends the path early."""
    x, y = model.train_inputs[0], model.train_targets
    taken, states = [0], [_copy(model)]

    def note(row: Any, trained: Any) -> bool:
        step = int(row["step"]) + 1
        if step % every == 0 or step == steps:
            taken.append(step)
            states.append(_copy(trained))
        return setting.time_is_up()

    seconds, ended = math.nan, ""
    try:
        with quiet_features():
            result = fit(
                model, model.likelihood, x, y, method, optimizer, steps, learning_rate, seed,
                callback=note, subset_start=False, tolerance=0.0,
            )  # fmt: skip
        seconds = result.seconds
        check_finished(result)
    except CellUnfinishedError:
        raise
    except RTGPError as error:
        ended = str(error).split(". ")[0][:160]
    return Path(tuple(taken), tuple(states), seconds, ended)


@contextmanager
def quiet_features() -> Iterator[None]:
    """Without the warning that features are too few: what they do is what is being measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)
        yield


def check_finished(result: FitResult) -> None:
    if result.status is FitStatus.STOPPED:
        raise CellUnfinishedError(f"the time was up after {result.steps} steps; run the same command again")


def sampled(model: RegressionModel, method: Method, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """log|K + noise|, y^T (K + noise)^-1 y and the size of `count` independent estimates, each (count,).

    The size is the number of iterations, or of features: for SS-RFF those of the rung that was drawn.
    """
    model = model.train()
    x, y = model.train_inputs[0], model.train_targets
    mll = MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(seed))
    found = torch.empty(count, 3, dtype=torch.float64)
    with torch.no_grad():
        for k in range(count):
            mll(model(x), y)
            last = mll.last
            assert last is not None
            size = last.iterations or (last.truncations[0] if last.truncations else last.features)
            found[k] = torch.tensor([last.log_det, last.quadratic, size])
    return found[:, 0], found[:, 1], found[:, 2]


def _copy(model: RegressionModel) -> State:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
