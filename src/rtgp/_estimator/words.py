"""What a fitted regressor says of itself: its likelihood, its hyperparameters, and its run for a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtgp._baselines import ExpertsModel, VariationalModel
from rtgp._estimator.relevance import NO_EFFECT, without_effect
from rtgp._report import Predictions, Run


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


def remark_on(regressor: Any, exactly: bool) -> Remark | None:
    """What is to be said of the regressor's log likelihood; `exactly`: it was computed by Cholesky."""
    if isinstance(regressor.model_, VariationalModel):
        return LOWER_BOUND
    if isinstance(regressor.model_, ExpertsModel):
        return EXPERTS
    name = regressor.method_.biased_as
    if not name or exactly:
        return None
    return Remark(
        "*",
        f"biased: {name}'s own estimate",
        f"Biased: {name}'s own estimate is off by an unknown amount that ± does not cover, so a higher number here is "
        "no better fit; compare by NLL and RMSE.",
    )


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


def value_words(regressor: Any, relevance: Mapping[str, float] | None = None) -> list[tuple[str, str]]:
    """(name, value with its standard error where known) of each hyperparameter. relevance: of inputs, where known."""
    errors, relevance = regressor.hyperparameter_errors_ or {}, relevance or {}
    rows = []
    for name, value in regressor.hyperparameters_.items():
        if without_effect(name, relevance):
            rows.append((name, NO_EFFECT))
            continue
        error = errors.get(name, math.nan)
        rows.append((name, f"{value:.5g}" + ("" if math.isnan(error) else f" ± {error:.2g}")))
    return rows
