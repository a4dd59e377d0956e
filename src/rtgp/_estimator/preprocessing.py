"""From the rows a person has to what a Gaussian process is trained on: checked, without idle columns, standardised."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rtgp.datasets._dataset import Array, Scaling, check_finite
from rtgp.errors import InputError


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Which columns are used, and the affine maps between original and working units."""

    columns: npt.NDArray[np.intp]  # of the inputs as given
    scaling: Scaling  # of the columns used, and of the target

    def inputs(self, X: Array) -> Array:
        """Inputs as given (m, d) -> working units, idle columns left out."""
        return np.ascontiguousarray(self.scaling.scale_inputs(X[:, self.columns]))


def learn_preprocessing(
    X: Array, y: Array, names: tuple[str, ...], standardize: bool, drop: bool, like: Preprocessing | None = None
) -> Preprocessing:
    """From the training rows. `drop` leaves out constant and repeated columns, with a warning that names them.

    like: what was learnt from the same inputs with another target.
    """
    if like is not None:
        columns = like.columns
    else:
        columns = informative_columns(X, names) if drop else np.arange(X.shape[1])
    return Preprocessing(columns, _scaling(X[:, columns], y, standardize))


@dataclass(frozen=True, eq=False)
class TargetScaling(Scaling):
    """Of several targets that share a model: a mean and a scale for each, (t,)."""

    y_mean: Any
    y_scale: Any


def _scaling(X: Array, y: Array, standardize: bool) -> Scaling:
    if y.ndim == 2:
        each = [_scaling(X, target, standardize) for target in y.T]
        means, scales = (np.array([getattr(one, name) for one in each]) for name in ("y_mean", "y_scale"))
        return TargetScaling(each[0].x_mean, each[0].x_scale, means, scales)
    d = X.shape[1]
    return Scaling.of(X, y) if standardize else Scaling(np.zeros(d), np.ones(d), 0.0, 1.0)


def informative_columns(X: Array, names: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """Every column that is neither constant nor a repetition of an earlier one."""
    constant = X.max(axis=0) == X.min(axis=0)
    if constant.all():
        raise InputError(
            f"Expected at least one input column that varies. Got {len(names)} constant column(s) "
            f"({_listed(list(names))}): there is nothing to predict from."
        )
    first: dict[bytes, int] = {}
    kept, repeated = [], []
    for j in np.flatnonzero(~constant):
        earlier = first.setdefault((X[:, j] + 0.0).tobytes(), int(j))  # + 0.0: a negative zero is a zero
        if earlier == j:
            kept.append(j)
        else:
            repeated.append(f"{names[j]!r} (= {names[earlier]!r})")
    idle = [f"constant: {_listed([names[j] for j in np.flatnonzero(constant)])}"] if constant.any() else []
    idle += [f"repeated: {', '.join(repeated)}"] if repeated else []
    if idle:
        warnings.warn(
            f"Input columns that say nothing were left out ({'; '.join(idle)}). Predictions still take all "
            f"{len(names)} columns; remove these to be rid of this warning.",
            UserWarning,
            stacklevel=5,
        )
    return np.array(kept, dtype=np.intp)


def check_inputs_are_numbers(X: Any) -> None:
    """Name the first row and column of a table that holds text; anything else is left to scikit-learn's check."""
    try:
        values = np.asarray(X)
    except (TypeError, ValueError):
        return
    if values.ndim != 2 or values.dtype.kind not in "OUS":
        return
    for row, cells in enumerate(values.tolist()):
        for column, cell in enumerate(cells):
            if isinstance(cell, str | bytes) and not _reads_as_number(cell):
                name = str(X.columns[column]) if hasattr(X, "columns") else f"x{column + 1}"
                raise InputError(
                    f"X: row {row + 1}, column {name!r} holds the text {cell!r:.60}; a number was expected: encode the "
                    "column as numbers, or leave it out."
                )


def check_inputs_finite(X: Array, names: tuple[str, ...]) -> None:
    """Name the first row and column of X that is NaN or infinite."""
    check_finite(X, names, "X")


def check_target_finite(y: Any) -> None:
    """Name the first row of a target that is NaN or infinite; anything but numbers is left to scikit-learn's check."""
    try:
        values = np.asarray(y)
        values = values.astype(np.float64) if values.dtype.kind in "biufO" else np.zeros(0)
    except (TypeError, ValueError):
        return
    if values.ndim in (1, 2) and values.size:
        values = values.reshape(len(values), -1)
        check_finite(values, tuple(f"y{i}" if values.shape[1] > 1 else "y" for i in range(values.shape[1])), "y")


def check_target_varies(y: Array) -> None:
    if y.max() == y.min():
        raise InputError(
            f"Expected a target that varies. Got {len(y)} rows that are all {y[0]:g}: there is nothing to learn; "
            "predict this value."
        )


def check_noise(noise: Any, n: int) -> Array:
    """Known noise variances, one number or one for each row -> (n,)."""
    try:
        variances = np.asarray(noise, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected noise variances as numbers. Got {noise!r:.80}.") from error
    if variances.shape not in ((), (n,)):
        raise InputError(
            f"Expected one noise variance for each of the {n} rows, or one for all. Got shape {variances.shape}."
        )
    if not (np.isfinite(variances) & (variances > 0)).all():
        where = "" if variances.ndim == 0 else f", first at row {int(np.argmin(variances > 0)) + 1}"
        raise InputError(
            f"Expected noise variances that are positive and finite. Got others{where}: give every row a positive "
            "variance, in the square of the target's units."
        )
    return np.broadcast_to(variances, (n,)).copy()


def _reads_as_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
