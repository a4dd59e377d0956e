"""Train one model on one split by one method's schedule, and score it on the test part: a cell of the tables."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reproduction import models
from reproduction.spec import Row, Setting
from rtgp._baselines import POE, SGGP, SVGP
from rtgp._estimator import fitting
from rtgp._estimator.model import GPYTORCH_START, RegressionModel, new_model
from rtgp._report import Predictions, nll, rmse
from rtgp.errors import ConvergenceError, NotPositiveDefiniteError
from rtgp.posterior import posterior
from rtgp.training import FitResult, fit
from rtgp.training._start import part_of

LANCZOS_RANK = 100  # the paper's, for predictive variances: shown beside the exact ones
_TIMED_STEPS = 14
_RUN_TO_THE_END = ("auto", "lbfgs")  # by their own criterion, from a fit on fewer points
_TOLERANCE = {"lbfgs": 1e-6, "adam": 0.0}  # 0: all steps are taken
_HALVINGS = (0.85, 0.9, 0.95)  # parts of the paper's RFF run after which its rate is halved


@dataclass(frozen=True)
class Training:
    """What is trained, and how.

    schedule: "auto", "lbfgs", "multistep STEPS RATE", "adam STEPS RATE", "halving STEPS RATE", "epochs EPOCHS" (SVGP,
    POE and sgGP), or "sggp+..." for one that begins where sgGP ends.
    """

    method: str
    size: int
    schedule: str
    seed: int
    kernel: str = "rbf"
    checkpoint: Path | None = None

    def new_model(self, data: models.Data, dtype: torch.dtype) -> RegressionModel:
        """Begins where this library does if it is trained to the end; by the paper's schedules as GPyTorch does."""
        start = None if self.schedule in _RUN_TO_THE_END else GPYTORCH_START
        return new_model(data.x.to(dtype), data.y.to(dtype), self.kernel, None, start)

    def method_and_schedule(self, setting: Setting, n: int) -> tuple[Any, str]:
        """Settings of the method, and the schedule in the steps of n points."""
        if self.method == "sggp":
            return SGGP(), _neighbour_schedule(_number(self.schedule), n)
        return setting.methods[self.method](self.size), self.schedule


def evaluate(setting: Setting, data: models.Data, of: Training) -> Row:
    """Train and score."""
    model, result = _trained(setting, data, of)
    models.check_finished(result)
    return _score(model, result, data)


def timed(setting: Setting, data: models.Data, of: Training) -> Row:
    """Seconds that a schedule takes. L-BFGS, the automatic one and POE are run whole, the first two after two steps not
    counted; of the others the first steps (or epochs) are, and their mean is multiplied: every step of theirs does
    the same work."""
    if of.method == "poe":
        result = _trained(setting, data, of)[1]
        return _multiplied(result, result.steps, data)
    if of.method == "svgp":
        result = _trained(setting, data, replace(of, schedule="epochs 1"))[1]  # or 100 steps
        batch = SVGP().sizes(len(data.y))[1]
        return _multiplied(result, max(result.steps, math.ceil(_number(of.schedule) * len(data.y) / batch)), data)
    made, schedule = of.method_and_schedule(setting, len(data.y))
    dtype = torch.float64 if of.method == "cholesky" else torch.float32

    def trained(steps: int | None, checkpoint: Path | None = None) -> FitResult:
        calls = itertools.count(1)
        short = setting if steps is None else replace(setting, time_is_up=lambda: next(calls) >= steps)
        model = of.new_model(data, dtype)
        return _fit(model, made, schedule, of.seed, checkpoint, short)

    if schedule not in _RUN_TO_THE_END:
        return _multiplied(trained(_TIMED_STEPS), int(schedule.split()[1]), data)
    trained(2)  # libraries start, and kernels are compiled
    result = trained(None, of.checkpoint)
    models.check_finished(result)
    return _multiplied(result, result.steps, data)


def _multiplied(result: FitResult, steps: int, data: models.Data) -> Row:
    """The seconds of `steps` steps from those of a run of fewer; its first two also start libraries."""
    seconds = result.seconds
    if steps > result.steps > 2:
        marks = [float(value) for value in result.history.column("seconds")]
        seconds = marks[1] + (marks[-1] - marks[1]) / (len(marks) - 2) * (steps - 2)
    measured = {"points": len(data.y), "seconds": seconds, "steps": steps, "measured": result.steps}
    return {**measured, "optimizer": result.optimizer, "ended": result.status.value}


def _fit(model: Any, method: Any, schedule: str, seed: int, checkpoint: Path | None, setting: Setting) -> FitResult:
    kind, *numbers = schedule.split()
    optimizer: Any = kind
    steps, rate = (int(numbers[0]), float(numbers[1])) if numbers else (None, None)
    note: Callable[[Any, Any], bool] = lambda row, trained: setting.time_is_up()  # noqa: E731
    if kind == "halving":
        optimizer, note = _halving(int(steps or 1), float(rate or 0.01), setting)
    # "auto" alone would have L-BFGS begin at the given hyperparameters, as its objective is exact.
    starts: dict[str, str | int] = {"auto": "auto", "lbfgs": part_of(len(model.train_targets))}
    with models.quiet_features():
        return fit(
            model, model.likelihood, model.train_inputs[0], model.train_targets, method, optimizer, steps, rate, seed,
            checkpoint, note, tolerance=_TOLERANCE.get(kind), subset_start=starts.get(kind, False),
        )  # fmt: skip


def _halving(steps: int, rate: float, setting: Setting) -> tuple[Any, Callable[[Any, Any], bool]]:
    """Adam whose rate is halved at 85, 90 and 95% of the steps."""
    held: list[torch.optim.Adam] = []

    def adam_with_halvings(parameters: Any, **settings: Any) -> torch.optim.Adam:
        held.append(torch.optim.Adam(parameters, **settings))
        return held[-1]

    def note(row: Any, trained: Any) -> bool:
        passed = sum(int(row["step"]) + 1 >= part * steps for part in _HALVINGS)
        for group in held[-1].param_groups:
            group["lr"] = rate * 0.5**passed
        return setting.time_is_up()

    return adam_with_halvings, note


def _trained(setting: Setting, data: models.Data, of: Training) -> tuple[Any, FitResult]:
    """In float32; in float64 where that does not serve."""
    train = _train_baseline if of.method in ("svgp", "poe") else _train_exact
    try:
        return train(setting, data, of, torch.float32)
    except (NotPositiveDefiniteError, ConvergenceError):
        pass  # what it held is let go of first
    return train(setting, data, of, torch.float64)


def _train_exact(setting: Setting, data: models.Data, of: Training, dtype: torch.dtype) -> tuple[Any, FitResult]:
    made, schedule = of.method_and_schedule(setting, len(data.y))
    model = of.new_model(data, dtype)
    folder = None if of.checkpoint is None else of.checkpoint / str(dtype).removeprefix("torch.")
    if schedule.startswith("sggp+"):
        first = _neighbour_schedule(300, len(data.y))
        start = None if folder is None else folder / "sggp"
        models.check_finished(_fit(model, SGGP(), first, of.seed, start, setting))
        model.train()
    return model, _fit(model, made, schedule.removeprefix("sggp+"), of.seed, folder, setting)


def _train_baseline(setting: Setting, data: models.Data, of: Training, dtype: torch.dtype) -> tuple[Any, FitResult]:
    made = SVGP(epochs=int(_number(of.schedule))) if of.method == "svgp" else POE()
    rate = 0.01 if of.method == "svgp" else None
    known = fitting.Data(data.x.to(dtype), data.y.to(dtype), None)
    return fitting.train_model(known, of.kernel, made, fitting.Training(None, rate, of.seed))


def _score(model: Any, result: FitResult, data: models.Data) -> Row:
    likelihood = model.likelihood
    inputs = getattr(model, "train_inputs", None)
    found = posterior(model, likelihood, variance="exact") if inputs is not None else posterior(model, likelihood)
    exact = _predictions(found, data)
    row: dict[str, Any] = {"rmse": rmse(exact), "nll": nll(exact)}
    if inputs is not None:
        rank = min(LANCZOS_RANK, len(data.y))
        row["nll_lanczos"] = nll(_predictions(posterior(model, likelihood, variance="lanczos", rank=rank), data))
    losses = [float(value) for value in result.history.column("loss")]
    tenth = max(1, len(losses) // 10)
    iterations = [float(value) for value in result.history.column("iterations")]
    row |= {"points": len(data.y), "seconds": result.seconds, "steps": result.steps, "loss": result.loss}
    row |= {"loss_error": result.loss_error, "iterations": statistics.fmean(iterations) if iterations else 0.0}
    # How much the objective still fell over the last tenth of the run.
    still = statistics.fmean(losses[-2 * tenth : -tenth] or losses) - statistics.fmean(losses[-tenth:])
    row |= {"falling": still, "optimizer": result.optimizer, "ended": result.status.value}
    return {**row, "dtype": _dtype_of(model)}


def _dtype_of(model: Any) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def _predictions(found: Any, data: models.Data) -> Predictions:
    x = data.x_test.to(fitting.reference(found.model))
    mean, variance = found.mean(x), found.variance(x, include_noise=True)
    y, mean, std = (np.asarray(v.detach().double().cpu()) for v in (data.y_test, mean, variance.double().sqrt()))
    return Predictions(y, mean, std)


def _neighbour_schedule(epochs: float, n: int) -> str:
    """sgGP by the paper's schedule: an epoch has each point as a centre once."""
    return f"multistep {math.ceil(epochs * n / SGGP().centres)} 0.01"


def _number(schedule: str) -> float:
    return float(schedule.split()[1])
