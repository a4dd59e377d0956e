"""A regression data set: inputs, target and their names; seeded subsets and splits, standardised reversibly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rtgp._markup import ENDS, table
from rtgp.errors import InputError, SettingError

Array = npt.NDArray[np.float64]

SMALLEST_SPLIT = 5  # below this a part would be empty, or the training part too small to have a spread


@dataclass(frozen=True, eq=False)
class Scaling:
    """The affine map that standardised a data set, and its inverse.

    A column that is constant in the training part has scale 1: it is centred and never divided by zero.

    Parameters
    ----------
    x_mean, x_scale : numpy.ndarray
        Mean and standard deviation of each input, (d,).
    y_mean, y_scale : float
        Mean and standard deviation of the target.

    Examples
    --------
    >>> import numpy as np
    >>> from rtgp.datasets import Scaling
    >>> scaling = Scaling.of(np.array([[0.0], [2.0]]), np.array([10.0, 30.0]))
    >>> scaling.scale_target([10.0, 30.0]).tolist()
    [-1.0, 1.0]
    >>> scaling.unscale_target([0.5]).tolist()
    [25.0]
    """

    x_mean: Array
    x_scale: Array
    y_mean: float
    y_scale: float

    @classmethod
    def of(cls, X: Array, y: Array) -> Scaling:
        """The map that brings every column to mean 0 and population standard deviation 1.

        Parameters
        ----------
        X : numpy.ndarray
            Inputs, (n, d).
        y : numpy.ndarray
            Targets, (n,).

        Returns
        -------
        Scaling
            The map.
        """
        x_mean, x_scale = _mean_and_scale(X)
        y_mean, y_scale = _mean_and_scale(y[:, None])
        return cls(x_mean, x_scale, float(y_mean[0]), float(y_scale[0]))

    def scale_inputs(self, X: npt.ArrayLike) -> Array:
        """Inputs in original units -> standardised.

        Parameters
        ----------
        X : array-like
            Inputs, (n, d).

        Returns
        -------
        numpy.ndarray
            The standardised inputs.
        """
        return (np.asarray(X, dtype=np.float64) - self.x_mean) / self.x_scale

    def unscale_inputs(self, X: npt.ArrayLike) -> Array:
        """Standardised inputs -> original units.

        Parameters
        ----------
        X : array-like
            Standardised inputs, (n, d).

        Returns
        -------
        numpy.ndarray
            The inputs.
        """
        return np.asarray(X, dtype=np.float64) * self.x_scale + self.x_mean

    def scale_target(self, y: npt.ArrayLike) -> Array:
        """Target in original units -> standardised.

        Parameters
        ----------
        y : array-like
            Targets, (n,).

        Returns
        -------
        numpy.ndarray
            The standardised targets.
        """
        return (np.asarray(y, dtype=np.float64) - self.y_mean) / self.y_scale

    def unscale_target(self, y: npt.ArrayLike) -> Array:
        """Standardised target, or a predicted mean -> original units.

        Parameters
        ----------
        y : array-like
            Standardised targets, (n,).

        Returns
        -------
        numpy.ndarray
            The targets.
        """
        return np.asarray(y, dtype=np.float64) * self.y_scale + self.y_mean

    def unscale_std(self, std: npt.ArrayLike) -> Array:
        """A predicted standard deviation -> original units.

        There is no shift. For a variance, multiply by the square of `y_scale`.

        Parameters
        ----------
        std : array-like
            Standard deviations of the standardised target.

        Returns
        -------
        numpy.ndarray
            Standard deviations of the target.
        """
        return np.asarray(std, dtype=np.float64) * self.y_scale


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and target of a regression, with names.

    Parameters
    ----------
    X : numpy.ndarray
        Inputs in float64, (n, d).
    y : numpy.ndarray
        Targets in float64, (n,).
    feature_names : tuple of str
        Names of the inputs. By default x1 ... xd.
    target_name : str
        Name of the target.
    name : str
        Name of the data set.
    scaling : Scaling or None
        The map that standardised it; None where X and y are in original units.
    groups : numpy.ndarray or None
        Integers, (n,). Rows of one group stay together in a split: they tell too much about each other.
    test_rows : numpy.ndarray or None
        Booleans, (n,), where others have said which rows are for testing. `split` then takes these.

    Raises
    ------
    InputError
        If the shapes do not match, or a value is missing or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> from rtgp.datasets import Dataset
    >>> data = Dataset(np.arange(20.0).reshape(10, 2), np.arange(10.0))
    >>> data
    Dataset('data', n=10, d=2, target='y', original units)
    >>> data.subset(4, seed=0)
    Dataset('data', n=4, d=2, target='y', original units)
    >>> train, validation, test = data.split(seed=0)
    >>> len(train), len(validation), len(test)
    (6, 2, 2)
    >>> len(data.rows(np.array([3, 1])).standardised().original())
    2
    """

    X: Array
    y: Array
    feature_names: tuple[str, ...] = ()
    target_name: str = "y"
    name: str = "data"
    scaling: Scaling | None = None
    groups: npt.NDArray[np.intp] | None = None
    test_rows: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        X, y = _floats(self.X, "X"), _floats(self.y, "y")
        if X.ndim != 2 or y.ndim != 1 or len(X) != len(y):
            raise InputError(
                f"data set {self.name!r}: X must be (n, d) and y (n,) with the same n. "
                f"Got X of shape {X.shape} and y of shape {y.shape}."
            )
        if len(y) == 0 or X.shape[1] == 0:
            raise InputError(f"data set {self.name!r}: at least one row and one input column. Got X of {X.shape}.")
        feature_names = tuple(self.feature_names) or _default_names(X.shape[1])
        if len(feature_names) != X.shape[1]:
            raise InputError(
                f"data set {self.name!r}: one feature name per column of X. "
                f"Got {len(feature_names)} names for {X.shape[1]} columns."
            )
        for what, given in (("groups", self.groups), ("test_rows", self.test_rows)):
            if given is not None and np.shape(given) != y.shape:
                raise InputError(
                    f"data set {self.name!r}: {what} must have one entry for each of the {len(y)} rows. "
                    f"Got shape {np.shape(given)}."
                )
        check_finite(np.column_stack([X, y]), (*feature_names, self.target_name), f"data set {self.name!r}")
        for field, value in (("X", X), ("y", y), ("feature_names", feature_names)):
            object.__setattr__(self, field, value)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def unnamed(self) -> bool:
        """Whether its inputs have the names that are given where there are none."""
        return self.feature_names == _default_names(self.X.shape[1])

    def __repr__(self) -> str:
        state = "original units" if self.scaling is None else "standardised"
        return f"Dataset({self.name!r}, n={len(self)}, d={self.X.shape[1]}, target={self.target_name!r}, {state})"

    def _repr_html_(self) -> str:
        """The first rows, for notebooks."""
        head = ["row", *self.feature_names, self.target_name]
        rows = np.column_stack([self.X[: 2 * ENDS], self.y[: 2 * ENDS]])
        cells = [[str(i), *(f"{value:.5g}" for value in row)] for i, row in enumerate(rows)]
        return table(head, cells, repr(self), f"The first {len(cells)} of {len(self)} rows.")

    def rows(self, index: npt.NDArray[np.intp]) -> Dataset:
        """Some rows, in a given order. Units and scaling stay.

        Parameters
        ----------
        index : numpy.ndarray
            Their positions, (k,).

        Returns
        -------
        Dataset
            Those rows.
        """
        groups = None if self.groups is None else self.groups[index]
        test_rows = None if self.test_rows is None else self.test_rows[index]
        return replace(self, X=self.X[index], y=self.y[index], groups=groups, test_rows=test_rows)

    def subset(self, n: int, seed: int) -> Dataset:
        """Some rows, drawn without replacement. For one seed a smaller subset is the beginning of a larger one.

        Parameters
        ----------
        n : int
            The number of rows.
        seed : int
            The seed of the draw.

        Returns
        -------
        Dataset
            Those rows.
        """
        if not 1 <= n <= len(self):
            raise SettingError(f"The 'n' of subset must be between 1 and {len(self)} (rows of {self.name!r}). Got {n}.")
        return self.rows(_permutation(len(self), seed)[:n])

    def original(self) -> Dataset:
        """The same rows in original units.

        Returns
        -------
        Dataset
            A data set without scaling.
        """
        if self.scaling is None:
            return self
        X, y = self.scaling.unscale_inputs(self.X), self.scaling.unscale_target(self.y)
        return replace(self, X=X, y=y, scaling=None)

    def standardised(self, scaling: Scaling | None = None) -> Dataset:
        """The same rows, standardised.

        Parameters
        ----------
        scaling : Scaling, optional
            The map to use. By default that of their own mean and standard deviation.

        Returns
        -------
        Dataset
            A data set with this scaling.
        """
        raw = self.original()
        scaling = scaling or Scaling.of(raw.X, raw.y)
        return replace(raw, X=scaling.scale_inputs(raw.X), y=scaling.scale_target(raw.y), scaling=scaling)

    def split(self, seed: int, standardise: bool = True) -> Split:
        """64% training, 16% validation and 20% test, by a seeded permutation.

        With `groups` it is the groups that are drawn, one after the other, until a part is full. With `test_rows` these
        are the test part, whatever the seed, and the others are divided 80 to 20.

        The parts carry the scaling: `test.scaling.unscale_target(mean)` gives a prediction in original units,
        `test.original()` the rows.

        Parameters
        ----------
        seed : int
            The seed of the permutation.
        standardise : bool
            Whether all parts are standardised by the mean and standard deviation of the training part.

        Returns
        -------
        Split
            The three parts: `train`, `validation`, `test`.
        """
        n = len(self)
        if n < SMALLEST_SPLIT:
            raise InputError(f"a 64/16/20 split needs at least {SMALLEST_SPLIT} rows. {self.name!r} has {n}.")
        places = self._places(seed)
        if any(len(index) == 0 for index in places):
            counts = ", ".join(str(len(index)) for index in places)
            raise InputError(
                f"data set {self.name!r}: a part of the split would be empty (training, validation, test: {counts}). "
                "Take more rows, or rows of more groups."
            )
        raw = replace(self.original(), test_rows=None)  # the parts are no longer to be divided by them
        parts = [raw.rows(index) for index in places]
        if standardise:
            scaling = Scaling.of(parts[0].X, parts[0].y)
            parts = [part.standardised(scaling) for part in parts]
        return Split(*parts)

    def _places(self, seed: int) -> list[npt.NDArray[np.intp]]:
        """The rows of training, validation and test."""
        n = len(self)
        # Integers: no float rounding decides where a row goes.
        if self.test_rows is not None:
            order = _permutation(n, seed)
            test, others = order[self.test_rows[order]], order[~self.test_rows[order]]
            return [*np.split(others, [len(others) * 80 // 100]), np.sort(test)]
        cuts = [n * 64 // 100, n * 80 // 100]
        if self.groups is None:
            return np.split(_permutation(n, seed), cuts)
        members = np.unique(self.groups, return_inverse=True)[1]
        sizes = np.bincount(members)
        drawn = _permutation(len(sizes), seed)
        ends = np.cumsum(sizes[drawn])
        # A group belongs to the part in which its middle row lies.
        part = np.empty(len(sizes), dtype=np.intp)
        part[drawn] = np.searchsorted(cuts, ends - (sizes[drawn] + 1) // 2, side="right")
        return [np.flatnonzero(part[members] == k) for k in range(3)]


class Split(NamedTuple):
    """The three parts of `Dataset.split`.

    Attributes
    ----------
    train : Dataset
        64% of the rows.
    validation : Dataset
        16% of the rows.
    test : Dataset
        20% of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from rtgp.datasets import Dataset
    >>> parts = Dataset(np.arange(10.0)[:, None], np.arange(10.0)).split(seed=0)
    >>> len(parts.train), len(parts.test)
    (6, 2)
    """

    train: Dataset
    validation: Dataset
    test: Dataset


def check_finite(values: Array, columns: tuple[str, ...], where: str, first: int = 1) -> None:
    """Raise an InputError naming the first row and column that is NaN or infinite. first: the number of row 0."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = values[row, column]
        what = "is missing (NaN)" if np.isnan(value) else f"is {value}"
        raise InputError(
            f"{where}: row {row + first}, column {columns[column]!r} {what}; a finite number was expected. "
            f"{bad.sum()} such value(s) in all: remove or fill them in."
        )


def _default_names(count: int) -> tuple[str, ...]:
    return tuple(f"x{i}" for i in range(1, count + 1))


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
