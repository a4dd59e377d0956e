"""Columns of a pandas frame as float64; a cell that is not a number is named by row and column."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rtgp.datasets._dataset import Array
from rtgp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def numbers_of(frame: pd.DataFrame, path: Path, hint: str = "", first: int = 1) -> Array:
    """The frame as an array. `first` is the number of its first row among the rows of data, counted from 1."""
    import pandas as pd

    values = np.empty(frame.shape)
    for i, column in enumerate(frame.columns):
        cells = frame.iloc[:, i]
        if pd.api.types.is_datetime64_any_dtype(cells) or pd.api.types.is_timedelta64_dtype(cells):
            raise InputError(f"{path}: column {column!r:.80} holds dates ({cells.dtype}). Expected numbers.")
        try:
            numbers = _numeric(cells)
        except (TypeError, ValueError, OverflowError) as error:  # lists and other containers in a Parquet column
            raise InputError(f"{path}: column {column!r:.80} holds no plain numbers ({error!s:.200}).") from error
        text = numbers.isna().to_numpy() & cells.notna().to_numpy()
        if text.any():
            row = int(np.argmax(text))
            raise InputError(
                f"{path}: row {row + first}, column {column!r:.80} holds {cells.iloc[row]!r:.80}. "
                f"Expected a number.{hint}"
            )
        values[:, i] = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def _numeric(cells: pd.Series) -> pd.Series:
    import pandas as pd

    if isinstance(cells.dtype, pd.CategoricalDtype):  # text in a Parquet file: each word is looked at once
        words = pd.Series(cells.cat.categories).astype(object)
        known = pd.to_numeric(words, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        codes = cells.cat.codes.to_numpy()
        return pd.Series(np.where(codes >= 0, np.append(known, np.nan)[codes], np.nan))
    numbers = pd.to_numeric(cells, errors="coerce")
    if numbers.dtype.kind == "c":
        raise TypeError("complex numbers")
    return numbers
