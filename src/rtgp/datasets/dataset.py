"""A regression data set: inputs, target and their names; seeded subsets and splits, standardised reversibly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rtgp.errors import InputError, SettingError

Array = npt.NDArray[np.float64]

SMALLEST_SPLIT = 5  # below this a part would be empty, or the training part too small to have a spread


@dataclass(frozen=True, eq=False)
class Scaling:
    """The affine map that standardised a data set, and its inverse.

    A column that is constant in the training part has scale 1: it is centred and never divided by zero.
    """

    x_mean: Array  # (d,)
    x_scale: Array  # (d,)
    y_mean: float
    y_scale: float

    @classmethod
    def of(cls, X: Array, y: Array) -> Scaling:
        """Mean and population standard deviation of every column of X (n, d) and of y (n,)."""
        x_mean, x_scale = _mean_and_scale(X)
        y_mean, y_scale = _mean_and_scale(y[:, None])
        return cls(x_mean, x_scale, float(y_mean[0]), float(y_scale[0]))

    def scale_inputs(self, X: npt.ArrayLike) -> Array:
        """Inputs in original units -> standardised."""
        return (np.asarray(X, dtype=np.float64) - self.x_mean) / self.x_scale

    def unscale_inputs(self, X: npt.ArrayLike) -> Array:
        """Standardised inputs -> original units."""
        return np.asarray(X, dtype=np.float64) * self.x_scale + self.x_mean

    def scale_target(self, y: npt.ArrayLike) -> Array:
        """Target in original units -> standardised."""
        return (np.asarray(y, dtype=np.float64) - self.y_mean) / self.y_scale

    def unscale_target(self, y: npt.ArrayLike) -> Array:
        """Standardised target, or a predicted mean -> original units."""
        return np.asarray(y, dtype=np.float64) * self.y_scale + self.y_mean

    def unscale_std(self, std: npt.ArrayLike) -> Array:
        """A predicted standard deviation -> original units (no shift; square the factor for a variance)."""
        return np.asarray(std, dtype=np.float64) * self.y_scale


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs X (n, d) and target y (n,) in float64, with names; `scaling` is set where they are standardised."""

    X: Array
    y: Array
    feature_names: tuple[str, ...] = ()  # () names them x1 ... xd
    target_name: str = "y"
    name: str = "data"
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        X, y = _floats(self.X, "X"), _floats(self.y, "y")
        if X.ndim != 2 or y.ndim != 1 or len(X) != len(y):
            raise InputError(
                f"data set {self.name!r}: X must be (n, d) and y (n,) with the same n. "
                f"Got X of shape {X.shape} and y of shape {y.shape}."
            )
        if len(y) == 0 or X.shape[1] == 0:
            raise InputError(f"data set {self.name!r}: at least one row and one input column. Got X of {X.shape}.")
        feature_names = tuple(self.feature_names) or tuple(f"x{i}" for i in range(1, X.shape[1] + 1))
        if len(feature_names) != X.shape[1]:
            raise InputError(
                f"data set {self.name!r}: one feature name per column of X. "
                f"Got {len(feature_names)} names for {X.shape[1]} columns."
            )
        check_finite(np.column_stack([X, y]), (*feature_names, self.target_name), f"data set {self.name!r}")
        for field, value in (("X", X), ("y", y), ("feature_names", feature_names)):
            object.__setattr__(self, field, value)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        state = "original units" if self.scaling is None else "standardised"
        return f"Dataset({self.name!r}, n={len(self)}, d={self.X.shape[1]}, target={self.target_name!r}, {state})"

    def rows(self, index: npt.NDArray[np.intp]) -> Dataset:
        """The rows of `index`, in its order; units and scaling stay."""
        return replace(self, X=self.X[index], y=self.y[index])

    def subset(self, n: int, seed: int) -> Dataset:
        """n rows drawn without replacement. For one seed a smaller subset is the beginning of a larger one."""
        if not 1 <= n <= len(self):
            raise SettingError(f"The 'n' of subset must be between 1 and {len(self)} (rows of {self.name!r}). Got {n}.")
        return self.rows(_permutation(len(self), seed)[:n])

    def original(self) -> Dataset:
        """The same rows in original units."""
        if self.scaling is None:
            return self
        X, y = self.scaling.unscale_inputs(self.X), self.scaling.unscale_target(self.y)
        return replace(self, X=X, y=y, scaling=None)

    def standardised(self, scaling: Scaling | None = None) -> Dataset:
        """The same rows under `scaling`, by default under their own mean and standard deviation."""
        raw = self.original()
        scaling = scaling or Scaling.of(raw.X, raw.y)
        return replace(raw, X=scaling.scale_inputs(raw.X), y=scaling.scale_target(raw.y), scaling=scaling)

    def split(self, seed: int, standardise: bool = True) -> Split:
        """64% training, 16% validation, 20% test by a seeded permutation; standardised on the training part only.

        The parts carry the scaling: `test.scaling.unscale_target(mean)` gives a prediction in original units,
        `test.original()` the rows.
        """
        n = len(self)
        if n < SMALLEST_SPLIT:
            raise InputError(f"a 64/16/20 split needs at least {SMALLEST_SPLIT} rows. {self.name!r} has {n}.")
        raw, order = self.original(), _permutation(n, seed)
        cuts = [n * 64 // 100, n * 80 // 100]  # integers: no float rounding decides where a row goes
        parts = [raw.rows(index) for index in np.split(order, cuts)]
        if standardise:
            scaling = Scaling.of(parts[0].X, parts[0].y)
            parts = [part.standardised(scaling) for part in parts]
        return Split(*parts)


class Split(NamedTuple):
    """The three parts of `Dataset.split`."""

    train: Dataset
    validation: Dataset
    test: Dataset


def check_finite(values: Array, columns: tuple[str, ...], where: str) -> None:
    """Raise an InputError naming the first row (from 1) and column that is NaN or infinite."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = values[row, column]
        what = "is missing (NaN)" if np.isnan(value) else f"is {value}"
        raise InputError(
            f"{where}: row {row + 1}, column {columns[column]!r} {what}; a finite number was expected. "
            f"{bad.sum()} such value(s) in all: remove or fill them in."
        )


def _floats(values: npt.ArrayLike, what: str) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must hold numbers in a rectangular array: {error}") from error


def _mean_and_scale(values: Array) -> tuple[Array, Array]:
    mean = values.mean(axis=0)
    # The mean of equal numbers may miss them by a rounding, which would pass for a spread.
    constant = values.max(axis=0) == values.min(axis=0)
    mean = np.where(constant, values[0], mean)
    centred = values - mean
    largest = np.abs(centred).max(axis=0)
    largest = np.where(largest > 0, largest, 1.0)
    # Divided by the largest first, so that the squares of very small or large units neither vanish nor overflow.
    scale = largest * np.sqrt(np.mean((centred / largest) ** 2, axis=0))
    return mean, np.where(constant, 1.0, scale)


def _permutation(n: int, seed: int) -> npt.NDArray[np.intp]:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise SettingError(f"The 'seed' must be an integer from 0. Got {seed!r}.")
    return np.random.default_rng(int(seed)).permutation(n).astype(np.intp)
