"""Fit one method and judge it on held-out rows: what `compare` and `demo` tabulate."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rtgp.baselines import SGGP, Vecchia
from rtgp.cli.files import frame_of
from rtgp.datasets import Dataset
from rtgp.methods import CG, RFF, Cholesky
from rtgp.mll import MarginalLogLikelihood
from rtgp.modelling.fitting import is_exact
from rtgp.models import ExpertsModel, VariationalModel
from rtgp.objectives.reading import copied, own_data
from rtgp.regressor import GPRegressor
from rtgp.report import Predictions, Run, coverage, nll, rmse

# Whose own estimate of the likelihood is off by more than its standard error.
BIASED: dict[type[Any], str] = {CG: "plain CG", RFF: "RFF", SGGP: "sgGP", Vecchia: "Vecchia"}
EXACT_UP_TO = 8000  # points: half a gigabyte and some seconds for one Cholesky factor


@dataclass(frozen=True, eq=False)
class Score:
    """One method's training and its predictions of held-out rows."""

    method: str
    regressor: Any
    predictions: Predictions  # in the target's own unit
    unit: float  # standard deviation of the training targets
    log_likelihood: float  # per training point, target standardised
    error: float  # its standard error; 0: exact
    seconds: float
    steps: int
    iterations: int

    @property
    def remark(self) -> Remark | None:
        """What the log likelihood is, where it is neither exact nor an unbiased estimate."""
        return remark_on(self.regressor, exactly=_can_be_exact(self.regressor.model_))

    @property
    def rmse(self) -> float:
        return rmse(self.predictions)

    @property
    def nll(self) -> float:
        """Per held-out point, target standardised."""
        return nll(self.predictions, self.unit)

    @property
    def coverage(self) -> float:
        return coverage(self.predictions, 0.9)

    def cells(self) -> list[str]:
        """The row under HEAD."""
        likelihood = f"{self.log_likelihood:.4f}" + (f" ± {self.error:.4f}" if self.error else "")
        likelihood += f" {self.remark.mark}" if self.remark else ""
        return [
            self.method,
            likelihood,
            f"{self.rmse:.4g}",
            f"{self.nll:.4f}",
            f"{self.coverage:.1%}",
            f"{self.seconds:.1f}",
            str(self.steps),
            str(self.iterations) if self.iterations else "–",
        ]

    def run(self) -> Run:
        """For the report."""
        return run_of(self.regressor, self.method, self.predictions)


@dataclass(frozen=True)
class Remark:
    """On a log likelihood that is no estimate of the exact one."""

    mark: str  # behind the number
    short: str
    words: str


LOWER_BOUND = Remark(
    "†",
    "a lower bound",
    "A lower bound of the log marginal likelihood (the evidence lower bound of SVGP), not the value itself.",
)
EXPERTS = Remark(
    "‡",
    "of experts, each on its own rows",
    "The mean over POE's experts, each on its own rows, as if these were independent of all others.",
)
HEAD = ["method", "log marginal likelihood / n", "RMSE", "NLL", "90% coverage", "seconds", "steps", "iterations"]
NOTE = (
    "Log marginal likelihood per training point at each method's final hyperparameters{how}; NLL per held-out point; "
    "both for the target in units of its training standard deviation ({unit:.4g}). RMSE in the target's own unit. "
    "Seconds of training; iterations of conjugate gradients in all steps together."
)


def remark_on(regressor: Any, exactly: bool) -> Remark | None:
    """What is to be said of the regressor's log likelihood; `exactly`: it was computed by Cholesky."""
    if isinstance(regressor.model_, VariationalModel):
        return LOWER_BOUND
    if isinstance(regressor.model_, ExpertsModel):
        return EXPERTS
    name = BIASED.get(type(regressor.method_))
    if name is None or exactly:
        return None
    return Remark(
        "*",
        f"biased: {name}'s own estimate",
        f"Biased: {name}'s own estimate is off by an unknown amount that ± does not cover, so a higher number here is "
        "no better fit; compare by NLL and RMSE.",
    )


def score(method: str, train: Dataset, test: Dataset, settings: dict[str, Any]) -> Score:
    """Train on `train` (in original units), predict `test`."""
    regressor = GPRegressor(method=method, **settings)
    begin = time.perf_counter()
    regressor.fit(frame_of(train), train.y)
    seconds = time.perf_counter() - begin
    mean, std = regressor.predict(frame_of(test), return_std=True)
    likelihood, error = log_likelihood_per_point(regressor)
    rows = regressor.history_.rows
    return Score(
        method=method,
        regressor=regressor,
        predictions=Predictions(test.y, mean, std),
        unit=float(np.std(train.y)),
        log_likelihood=likelihood,
        error=error,
        seconds=seconds,
        steps=len(rows),
        iterations=sum(int(row["iterations"]) for row in rows),
    )


def note(scores: list[Score]) -> str:
    """What the columns mean."""
    plain = [one for one in scores if one.remark is None]
    how = ", computed exactly" if all(one.error == 0 for one in plain) else ", with standard error where estimated"
    remarks = dict.fromkeys(f"\n{one.remark.mark} {one.remark.words}" for one in scores if one.remark is not None)
    return NOTE.format(how=how, unit=scores[0].unit) + "".join(remarks)


def log_likelihood_per_point(regressor: Any) -> tuple[float, float]:
    """At the final hyperparameters, with its standard error: by Cholesky in float64 up to EXACT_UP_TO points.

    Beyond, and for models that have no exact one, that of the fit itself (`Score.remark` says what it is).
    """
    model = regressor.model_
    if not _can_be_exact(model):
        result = regressor.fit_result_
        return -float(result.loss), float(result.loss_error)
    exact = copied(model)[0].cpu().double().train()
    x, y = own_data(exact)
    likelihood = MarginalLogLikelihood(exact.likelihood, exact, method=Cholesky())
    with torch.no_grad():
        value = likelihood(exact(x), y)
    return float(value), 0.0


def _can_be_exact(model: Any) -> bool:
    return is_exact(model) and len(own_data(model)[1]) <= EXACT_UP_TO


def run_of(regressor: Any, name: str, predictions: Predictions | None) -> Run:
    """A fitted regressor as the report wants it."""
    result = regressor.fit_result_
    settings = {
        "method": regressor.method_,
        "chosen because": regressor.method_reason_,
        "start": result.start,
        "ended": result.message,
        "steps": result.steps,
        "seconds": f"{result.seconds:.1f}",
    }
    errors = {key: float(value) for key, value in (regressor.hyperparameter_errors_ or {}).items() if value == value}
    values = {key: float(value) for key, value in regressor.hyperparameters_.items()}
    return Run(name, regressor.history_.rows, values, errors, settings, predictions)


def likelihood_words(regressor: Any) -> str:
    """The log marginal likelihood of a fitted regressor, and what it is."""
    value, error = regressor.log_marginal_likelihood_value_, regressor.log_marginal_likelihood_error_
    remark = remark_on(regressor, exactly=False)
    number = f"{value:.2f}" + (f" ± {error:.2f}" if error else "")
    if remark is not None:
        return f"{number}, {remark.short}" if error else f"{number} ({remark.short})"
    return number if error else f"{number} (exact)"


def value_words(regressor: Any) -> list[tuple[str, str]]:
    """(name, value with its standard error where known) of each hyperparameter."""
    errors = regressor.hyperparameter_errors_ or {}
    rows = []
    for name, value in regressor.hyperparameters_.items():
        error = errors.get(name, math.nan)
        rows.append((name, f"{value:.5g}" + ("" if math.isnan(error) else f" ± {error:.2g}")))
    return rows
