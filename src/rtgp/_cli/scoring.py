"""Fit one method and judge it on held-out rows: what `compare` and `demo` tabulate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rtgp._cli.files import frame_of
from rtgp._estimator.fitting import is_exact
from rtgp._estimator.regressor import GPRegressor
from rtgp._estimator.words import Remark, remark_on, run_of
from rtgp._methods import AnyMethod, Cholesky
from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives.reading import copied, own_data
from rtgp._report import Predictions, Run, coverage, nll, rmse
from rtgp.datasets import Dataset

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

    def facts(self) -> dict[str, Any]:
        """The same as `cells`, for a script."""
        return {
            "method": self.method,
            "log_marginal_likelihood_per_row": self.log_likelihood,
            "log_marginal_likelihood_error": self.error,
            "log_marginal_likelihood_is": self.remark.short if self.remark else "exact or unbiased",
            "rmse": self.rmse,
            "nll": self.nll,
            "coverage of 90% intervals": self.coverage,
            "seconds": self.seconds,
            "steps": self.steps,
            "iterations": self.iterations,
            "hyperparameters": self.regressor.hyperparameters_,
        }

    def run(self) -> Run:
        """For the report."""
        return run_of(self.regressor, self.method, self.predictions)


HEAD = ["method", "log marginal likelihood / n", "RMSE", "NLL", "90% coverage", "seconds", "steps", "iterations"]
NOTE = (
    "Log marginal likelihood per training point at each method's final hyperparameters{how}; NLL per held-out point; "
    "both for the target in units of its training standard deviation ({unit:.4g}). RMSE in the target's own unit. "
    "Seconds of training; iterations of conjugate gradients in all steps together."
)


def score(
    name: str, train: Dataset, test: Dataset, settings: dict[str, Any], method: str | AnyMethod | None = None
) -> Score:
    """Train on `train` (in original units), predict `test`. name: of the row, and of the method where none is given."""
    regressor = GPRegressor(method=name if method is None else method, **settings)
    begin = time.perf_counter()
    regressor.fit(frame_of(train), train.y)
    seconds = time.perf_counter() - begin
    mean, std = regressor.predict(frame_of(test), return_std=True)
    likelihood, error = log_likelihood_per_point(regressor)
    rows = regressor.history_.rows
    return Score(
        method=name,
        regressor=regressor,
        predictions=Predictions(test.y, mean, std, places=test.X if test.X.shape[1] == 2 else None),
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


def facts_of(regressor: Any) -> dict[str, Any]:
    """What a fitted regressor is, for a script."""
    return {
        "method": type(regressor.method_).__name__,
        "method_reason": regressor.method_reason_,
        "kernel": str(regressor.kernel),
        "status": regressor.fit_result_.status.value,
        "message": regressor.fit_result_.message,
        "steps": regressor.fit_result_.steps,
        "seconds": regressor.fit_result_.seconds,
        "log_marginal_likelihood": regressor.log_marginal_likelihood_value_,
        "log_marginal_likelihood_error": regressor.log_marginal_likelihood_error_,
        "hyperparameters": regressor.hyperparameters_,
        "hyperparameter_errors": regressor.hyperparameter_errors_,
    }
