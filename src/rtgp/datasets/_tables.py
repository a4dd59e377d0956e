"""Own tables of numbers: CSV (header or not, gzip), Parquet and NPZ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rtgp._memory import enough_memory
from rtgp.datasets._csv_files import read_csv
from rtgp.datasets._dataset import Array, Dataset, check_finite
from rtgp.datasets._limits import check_size
from rtgp.datasets._npz_files import read_npz
from rtgp.datasets._parquet_files import read_parquet
from rtgp.errors import InputError

FORMATS = "'.csv', '.csv.gz', '.txt', '.txt.gz', '.parquet' or '.npz'"


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of finite numbers, before one of them is chosen as the target.

    Parameters
    ----------
    columns : tuple of str
        The names of the columns.
    values : numpy.ndarray
        The numbers in float64, (n, columns).
    name : str
        The name of the table.

    Examples
    --------
    >>> import numpy as np
    >>> from rtgp.datasets import Table
    >>> Table(("a", "b"), np.arange(6.0).reshape(3, 2), "some").dataset(target="a")
    Dataset('some', n=3, d=1, target='a', original units)
    """

    columns: tuple[str, ...]
    values: Array
    name: str

    def dataset(self, target: str | int | None = None) -> Dataset:
        """One column against all others.

        Parameters
        ----------
        target : str, int or None
            The name of the target, its position from 0, or None for the last column.

        Returns
        -------
        Dataset
            The target and the inputs.
        """
        place = self._place(target)
        if len(self.columns) < 2:
            raise InputError(f"{self.name}: at least one input column and the target. Got only {self.columns[0]!r}.")
        return Dataset(
            X=np.delete(self.values, place, axis=1),
            y=self.values[:, place].copy(),
            feature_names=self.columns[:place] + self.columns[place + 1 :],
            target_name=self.columns[place],
            name=self.name,
        )

    def _place(self, target: str | int | None) -> int:
        count = len(self.columns)
        if target is None:
            return count - 1
        if isinstance(target, str):
            if target not in self.columns:
                known = ", ".join(map(repr, self.columns))
                raise InputError(f"{self.name}: no target column {target!r}. The columns are {known}.")
            return self.columns.index(target)
        if not -count <= target < count:
            raise InputError(f"{self.name}: target column {target} is outside its {count} columns (counted from 0).")
        return target % count


def read(path: str | Path, target: str | int | None = None, header: bool | None = None) -> Dataset:
    r"""A file of numbers as a data set.

    Parameters
    ----------
    path : path
        A CSV, Parquet or NPZ file.
    target : str, int or None
        The name of the target, its position from 0, or None for the last column.
    header : bool, optional
        Whether the first line of a CSV names the columns. By default this is found out.

    Returns
    -------
    Dataset
        The target and the inputs.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from rtgp import datasets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "some.csv")
    ...     _ = path.write_text("size,price\n1,10\n2,21\n")
    ...     datasets.read(path, target="price")
    Dataset('some', n=2, d=1, target='price', original units)
    """
    return read_table(path, header).dataset(target)


def read_table(path: str | Path, header: bool | None = None) -> Table:
    r"""A file of numbers as a table.

    An NPZ holds `X` (n, d), and where known `y` (n,), `feature_names` and `target_name`; y becomes the last column.

    Parameters
    ----------
    path : path
        A CSV, Parquet or NPZ file. A CSV may be compressed by gzip.
    header : bool, optional
        Whether the first line of a CSV names the columns. By default this is found out.

    Returns
    -------
    Table
        The columns, without a choice of target.

    Raises
    ------
    InputError
        If there is no such file, or it is no table of finite numbers.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from rtgp import datasets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "some.csv")
    ...     _ = path.write_text("size,price\n1,10\n2,21\n")
    ...     datasets.read_table(path).columns
    ('size', 'price')
    """
    path = Path(path)
    kind, name = kind_of(path)
    with enough_memory(f"{path}", "Read fewer rows or columns, or take a machine with more memory"):
        check_size(path)
        if kind == ".parquet":
            columns, values = read_parquet(path)
        elif kind == ".npz":
            columns, values = read_npz(path)
        else:
            columns, values = read_csv(path, header)
        check_names(path, columns)
        if values.size == 0:
            raise InputError(f"{path}: no rows of data. Expected at least one.")
        check_finite(values, columns, str(path))
        return Table(columns, values, name)


def kind_of(path: Path) -> tuple[str, str]:
    """(the kind of a table by its suffix, its name without it); of an existing file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file. Expected a table in {FORMATS}.")
    inner = Path(path.stem) if path.suffix.lower() == ".gz" else Path(path.name)
    kind = inner.suffix.lower()
    if kind not in (".csv", ".txt", ".parquet", ".npz"):
        raise InputError(f"{path}: unknown kind of table {kind!r}. Expected {FORMATS}.")
    return kind, inner.stem


def check_names(path: Path, columns: tuple[str, ...]) -> None:
    """Each column has a name of its own."""
    repeated = sorted(column for column, count in Counter(columns).items() if count > 1)
    if repeated:
        some = ", ".join(f"{column!r:.80}" for column in repeated[:10])
        raise InputError(f"{path}: column name(s) {some} given more than once. Rename them.")
