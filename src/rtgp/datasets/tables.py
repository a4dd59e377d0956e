"""Own tables of numbers: CSV (header or not, gzip), Parquet and NPZ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rtgp.datasets.csv_files import read_csv
from rtgp.datasets.dataset import Array, Dataset, check_finite
from rtgp.datasets.limits import check_size
from rtgp.datasets.npz_files import read_npz
from rtgp.datasets.parquet_files import read_parquet
from rtgp.errors import InputError
from rtgp.memory import enough_memory

FORMATS = "'.csv', '.csv.gz', '.txt', '.txt.gz', '.parquet' or '.npz'"


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of finite float64 numbers; which of them is a target is not yet said."""

    columns: tuple[str, ...]
    values: Array  # (n, columns)
    name: str

    def dataset(self, target: str | int | None = None) -> Dataset:
        """The column `target` (a name, a position from 0, or None for the last) against all others."""
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
    """A file of numbers as a data set; `target` is a column's name or position, the last column by default."""
    return read_table(path, header).dataset(target)


def read_table(path: str | Path, header: bool | None = None) -> Table:
    """A CSV, Parquet or NPZ file. `header=None` finds out whether the first line of a CSV names the columns.

    An NPZ holds `X` (n, d), and where known `y` (n,), `feature_names` and `target_name`; y becomes the last column.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file. Expected a table in {FORMATS}.")
    inner = Path(path.stem) if path.suffix.lower() == ".gz" else Path(path.name)
    kind = inner.suffix.lower()
    if kind not in (".csv", ".txt", ".parquet", ".npz"):
        raise InputError(f"{path}: unknown kind of table {kind!r}. Expected {FORMATS}.")
    with enough_memory(f"{path}", "Read fewer rows or columns, or take a machine with more memory"):
        check_size(path)
        if kind == ".parquet":
            columns, values = read_parquet(path)
        elif kind == ".npz":
            columns, values = read_npz(path)
        else:
            columns, values = read_csv(path, header)
        repeated = sorted(column for column, count in Counter(columns).items() if count > 1)
        if repeated:
            some = ", ".join(f"{column!r:.80}" for column in repeated[:10])
            raise InputError(f"{path}: column name(s) {some} given more than once. Rename them.")
        if values.size == 0:
            raise InputError(f"{path}: no rows of data. Expected at least one.")
        check_finite(values, columns, str(path))
        return Table(columns, values, inner.stem)
