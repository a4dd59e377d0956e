"""Own tables of numbers: CSV (header or not, gzip), Parquet and NPZ."""

from __future__ import annotations

import csv
import gzip
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from rtgp.datasets.dataset import Array, Dataset, check_finite
from rtgp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

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
    if kind in (".csv", ".txt"):
        columns, values = _csv(path, header)
    elif kind == ".parquet":
        columns, values = _parquet(path)
    elif kind == ".npz":
        columns, values = _npz(path)
    else:
        raise InputError(f"{path}: unknown kind of table {kind!r}. Expected {FORMATS}.")
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise InputError(f"{path}: column name(s) {', '.join(map(repr, repeated))} given more than once. Rename them.")
    if values.size == 0:
        raise InputError(f"{path}: no rows of data. Expected at least one.")
    check_finite(values, columns, str(path))
    return Table(columns, values, inner.stem)


def _open(path: Path) -> TextIO:
    # utf-8-sig: spreadsheets write a byte-order mark, which would become part of the first column's name.
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _csv(path: Path, header: bool | None) -> tuple[tuple[str, ...], Array]:
    import pandas as pd

    skipped = 0
    try:
        with _open(path) as file:
            lines = csv.reader(file)
            first = next((line for line in lines if any(cell.strip() for cell in line)), None)
            if first is None:
                raise InputError(f"{path}: the file is empty. Expected rows of comma-separated numbers.")
            named = not any(map(_is_number, first)) if header is None else header
            if named:
                skipped = lines.line_num  # the rest of the file, behind the names, is read below
            else:
                file.seek(0)
            frame = pd.read_csv(file, header=None, low_memory=False)
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: a header and no rows of data. Expected at least one row.") from None
    except pd.errors.ParserError as error:
        raise InputError(f"{path}: {_ragged(str(error), skipped)}") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a readable CSV file ({error}). Expected UTF-8 text, or gzip of it.") from error
    if named and len(first) != frame.shape[1]:
        raise InputError(f"{path}: {len(first)} column names but {frame.shape[1]} columns in the first row of data.")
    names = [cell.strip() for cell in first] if named else [""] * frame.shape[1]
    frame.columns = pd.Index([name or f"column {i}" for i, name in enumerate(names, 1)])
    hint = "" if named or header is not None else " If the first line names the columns, pass header=True."
    return _numbers(frame, path, hint)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _ragged(message: str, skipped: int) -> str:
    """The parser counts lines from where it began; a reader counts them from the top of the file."""
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message)
    if not found:
        return f"not a readable CSV file ({message.strip()})."
    expected, line, saw = map(int, found.groups())
    return f"line {line + skipped} has {saw} columns where the first row of data has {expected}."


def _parquet(path: Path) -> tuple[tuple[str, ...], Array]:
    import pandas as pd
    from pyarrow import ArrowException

    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except (ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error}).") from error
    frame.columns = frame.columns.map(str)
    return _numbers(frame, path, "")


def _numbers(frame: pd.DataFrame, path: Path, hint: str) -> tuple[tuple[str, ...], Array]:
    """Columns as float64; a cell that is not a number is named by row (of data, from 1) and column."""
    import pandas as pd

    values = np.empty(frame.shape)
    for i, column in enumerate(frame.columns):
        cells = frame.iloc[:, i]
        if pd.api.types.is_datetime64_any_dtype(cells) or pd.api.types.is_timedelta64_dtype(cells):
            raise InputError(f"{path}: column {column!r} holds dates ({cells.dtype}). Expected numbers.")
        try:
            numbers = pd.to_numeric(cells, errors="coerce")
        except TypeError as error:  # lists and other containers in a Parquet column
            raise InputError(f"{path}: column {column!r} holds no plain numbers ({error}).") from error
        text = (numbers.isna() & cells.notna()).to_numpy()
        if text.any():
            row = int(np.argmax(text))
            raise InputError(
                f"{path}: row {row + 1}, column {column!r} holds {cells.iloc[row]!r}. Expected a number.{hint}"
            )
        values[:, i] = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    return tuple(frame.columns), values


def _npz(path: Path) -> tuple[tuple[str, ...], Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not a readable NPZ file of plain arrays ({error}).") from error
    if "X" not in arrays:
        raise InputError(f"{path}: no array 'X' (n, d) in it. Got {sorted(arrays)}.")
    X, y = arrays["X"], arrays.get("y")
    numeric = all(array.dtype.kind in "biuf" for array in (X, y) if array is not None)
    if not numeric or X.ndim != 2 or (y is not None and y.shape != X.shape[:1]):
        got = f"X {X.dtype} {X.shape}" + ("" if y is None else f", y {y.dtype} {y.shape}")
        raise InputError(f"{path}: expected numbers as X (n, d) and y (n,). Got {got}.")
    names = [str(name) for name in np.ravel(arrays.get("feature_names", [f"x{i}" for i in range(1, X.shape[1] + 1)]))]
    if len(names) != X.shape[1]:
        raise InputError(f"{path}: {len(names)} feature names for the {X.shape[1]} columns of X.")
    if y is None:
        return tuple(names), X.astype(np.float64)
    return (*names, str(arrays.get("target_name", "y"))), np.column_stack([X, y]).astype(np.float64)
