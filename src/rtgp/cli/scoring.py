"""Fit one method and judge it on held-out rows: what `compare` and `demo` tabulate."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rtgp.cli.files import frame_of
from rtgp.datasets import Dataset
from rtgp.methods import CG, Cholesky
from rtgp.mll import MarginalLogLikelihood
from rtgp.regressor import GPRegressor
from rtgp.report import Predictions, Run, coverage, nll, rmse

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
    def biased(self) -> bool:
        """Whether the log likelihood is plain CG's own estimate: off by more than its standard error tells."""
        return self.error > 0 and isinstance(self.regressor.method_, CG)

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
        likelihood += f" {MARK}" if self.biased else ""
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


MARK = "*"  # behind a biased number
HEAD = ["method", "log marginal likelihood / n", "RMSE", "NLL", "90% coverage", "seconds", "steps", "iterations"]
NOTE = (
    "Log marginal likelihood per training point at each method's final hyperparameters{how}; NLL per held-out point; "
    "both for the target in units of its training standard deviation ({unit:.4g}). RMSE in the target's own unit. "
    "Seconds of training; iterations of conjugate gradients in all steps together."
)
NOTE_BIASED = (
    f"\n{MARK} Biased: plain CG's own estimate is off by an unknown amount that ± does not cover, so a higher number "
    "here is no better fit; compare by NLL and RMSE."
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
    how = ", computed exactly" if all(one.error == 0 for one in scores) else ", with standard error where estimated"
    return NOTE.format(how=how, unit=scores[0].unit) + (NOTE_BIASED if any(one.biased for one in scores) else "")


def log_likelihood_per_point(regressor: Any) -> tuple[float, float]:
    """At the final hyperparameters, with its standard error: by Cholesky in float64 up to EXACT_UP_TO points.

    Beyond, the estimate of the fit itself, which for plain CG is biased (`Score.biased`).
    """
    model = regressor.model_
    n = len(model.train_targets)
    if n > EXACT_UP_TO:
        result = regressor.fit_result_
        return -float(result.loss), float(result.loss_error)
    exact = copy.deepcopy(model).cpu().double()
    exact.train()
    likelihood = MarginalLogLikelihood(exact.likelihood, exact, method=Cholesky())
    with torch.no_grad():
        value = likelihood(exact(*exact.train_inputs), exact.train_targets)
    return float(value), 0.0


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
