"""Of a fitted regressor: its training data in the units it was given, its predictions, its summary and its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rtgp._baselines import ExpertsModel, VariationalModel
from rtgp._estimator.fitting import is_exact
from rtgp._estimator.relevance import known_relevance
from rtgp._estimator.words import likelihood_words, remark_on, run_of, value_words
from rtgp._markup import pairs, text
from rtgp._objectives.reading import own_data
from rtgp._report import Curve, Predictions, Report, Slices, Surface, coverage, nll, rmse, write_report
from rtgp._report.advice import Facts, advice
from rtgp._report.grids import picture_of, slices_picture
from rtgp._report.leave_one_out import UP_TO, leave_one_out
from rtgp.datasets._dataset import Array
from rtgp.errors import InputError
from rtgp.training import FitStatus

MOST_VALUES = 12  # hyperparameters at the head of a report


@dataclass(frozen=True, eq=False)
class Trained:
    """What a regressor was trained on, in original units. y: None for a model that keeps no targets."""

    X: Array  # (n, d), all columns that `fit` was given
    y: Array | None
    names: tuple[str, ...]
    used: tuple[str, ...]  # those that say something


def trained_on(regressor: Any) -> Trained:
    """Read back from the model. Columns that were left out, which say nothing, are 0."""
    model, preprocessing = regressor.model_, regressor._preprocessing
    scaling, names = preprocessing.scaling, regressor._column_names()
    y = None
    if isinstance(model, VariationalModel):
        x = model.inducing_points.detach().double().cpu().numpy()
    else:
        parts = [own_data(one) for one in (model.experts if isinstance(model, ExpertsModel) else [model])]
        x = np.concatenate([part[0].detach().double().cpu().numpy() for part in parts])
        y = scaling.unscale_target(np.concatenate([part[1].detach().double().cpu().numpy() for part in parts]))
    X = np.zeros((len(x), regressor.n_features_in_))
    X[:, preprocessing.columns] = scaling.unscale_inputs(x)
    return Trained(X, y, names, tuple(names[j] for j in preprocessing.columns))


def predicts(regressor: Any, trained: Trained) -> Any:
    """`predict` of a frame that has the used columns only."""
    named = hasattr(regressor, "feature_names_in_")

    def predict(frame: pd.DataFrame, return_std: bool = False) -> Any:
        full = pd.DataFrame(0.0, index=frame.index, columns=list(trained.names))
        full[list(frame.columns)] = frame
        return regressor.predict(full if named else full.to_numpy(), return_std=return_std)

    return predict


def predictions_of(regressor: Any, X: Any = None, y: Any = None, up_to: int = UP_TO) -> Predictions | None:
    """Of held-out rows where they are given; else of each training row from all others, where that can be had."""
    if (X is None) != (y is None):
        raise InputError("Expected both X and y of held-out rows, or neither. Got one of them: pass the other too.")
    if X is not None:
        mean, std = regressor.predict(X, return_std=True)
        return Predictions(np.asarray(y, dtype=np.float64), mean, std)
    if not is_exact(regressor.model_):
        return None
    targets = trained_on(regressor).y
    return None if targets is None else leave_one_out(regressor.model_, targets, up_to)


def picture(regressor: Any, target: str) -> Curve | Surface | Slices:
    """The posterior over the range of the training data."""
    return picture_of(*_grid_arguments(regressor), target, seed=regressor.seed_)


def slices(regressor: Any, target: str) -> Slices:
    """The posterior along single inputs, and what each contributes, also where there are one or two."""
    return slices_picture(*_grid_arguments(regressor), target, seed=regressor.seed_)


def _grid_arguments(regressor: Any) -> tuple[Any, Array, Array, tuple[str, ...]]:
    trained = trained_on(regressor)
    X, y = trained.X[:, [trained.names.index(name) for name in trained.used]], trained.y
    predict = predicts(regressor, trained)
    if y is None:  # the targets are gone: the predictions stand for their spread
        y = predict(pd.DataFrame(X, columns=list(trained.used)))
    return predict, X, y, trained.used


@dataclass(frozen=True)
class Summary:
    """A fitted regressor in a few lines: as text where it is printed, as a table in a notebook."""

    rows: tuple[tuple[str, str], ...]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows)
        lines = [f"{name:<{width}}  {value}" for name, value in self.rows]
        return "\n".join([*lines, "", *self.advice] if self.advice else lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{text(words)}</li>" for words in self.advice)
        return f"{pairs(self.rows)}<ul>{said}</ul>"


def summary_of(regressor: Any, predictions: Predictions | None, advised: bool = True) -> Summary:
    """Method, likelihood, hyperparameters with errors, scores where there are predictions, and what to do next."""
    result = regressor.fit_result_
    rows = [
        ("method", f"{type(regressor.method_).__name__} ({regressor.method_reason_})"),
        ("training", f"{result.steps} steps, {result.seconds:.1f} s: {result.message}"),
        *highlights(regressor, predictions, known_relevance(regressor, asked=advised)),
    ]
    return Summary(tuple(rows), tuple(next_steps(regressor, predictions, {})) if advised else ())


def highlights(
    regressor: Any, predictions: Predictions | None, relevance: Mapping[str, float], most: int | None = None
) -> list[tuple[str, str]]:
    """What to know first. relevance: of inputs, where known; most: hyperparameters that are listed."""
    rows = score_words(predictions) if predictions is not None else []
    values = value_words(regressor, relevance)
    if most is not None and len(values) > most:
        values = [*values[:most], ("further hyperparameters", f"{len(values) - most}, in the table at the end")]
    return [*rows, ("log marginal likelihood", likelihood_words(regressor)), *values]


def score_words(predictions: Predictions) -> list[tuple[str, str]]:
    """Errors and calibration in words."""
    kind, spread = predictions.kind, float(np.std(predictions.y))
    found = [
        (f"RMSE, {kind}", f"{rmse(predictions):.4g} of a spread of {spread:.4g}"),
        (f"90% coverage, {kind}", f"{coverage(predictions):.1%}"),
    ]
    if spread > 0:
        found.append((f"NLL, {kind}, standardised", f"{nll(predictions, spread):.4f}"))
    return found


def next_steps(regressor: Any, predictions: Predictions | None, relevance: Mapping[str, float]) -> list[str]:
    """What to do next, as sentences."""
    result, remark = regressor.fit_result_, remark_on(regressor, exactly=False)
    return advice(
        Facts(
            converged=result.status is FitStatus.CONVERGED,
            message=result.message,
            biased=regressor.method_.biased_as if remark is not None else "",
            likelihood_error=float(regressor.log_marginal_likelihood_error_),
            predictions=predictions,
            relevance=relevance,
        )
    )


def report_of(
    regressor: Any,
    predictions: Predictions | None,
    title: str,
    target: str,
    settings: Mapping[str, object],
    command: str = "",
) -> Report:
    """The report of one fit, with its summary first."""
    n, d, name = len(trained_on(regressor).X), regressor.n_features_in_, type(regressor.method_).__name__
    shown = picture(regressor, target)
    relevance = shown.relevance if isinstance(shown, Slices) else {}
    return Report(
        title=title,
        summary=f"A Gaussian process for {target!r} given {d} input{'s' if d > 1 else ''}, learned by {name}"
        + (f" from {n:,} rows." if not isinstance(regressor.model_, VariationalModel | ExpertsModel) else "."),
        runs=[run_of(regressor, name, predictions)],
        picture=shown,
        settings=settings,
        highlights=highlights(regressor, predictions, known_relevance(regressor), MOST_VALUES),
        advice=next_steps(regressor, predictions, relevance),
        command=command,
        target=target,
    )


def write_page(regressor: Any, path: str | Path, X: Any, y: Any, title: str, target: str) -> Path:
    """The report of a regressor as a file."""
    parameters, inputs = regressor.get_params(deep=False), regressor._column_names()
    settings = {"inputs": ", ".join(inputs[:30]) + (" ..." if len(inputs) > 30 else ""), **parameters}
    return write_report(path, report_of(regressor, predictions_of(regressor, X, y), title, target, settings))
