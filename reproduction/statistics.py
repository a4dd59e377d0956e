"""Small sums over rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from reproduction.spec import Row


def mean_and_error(values: Tensor | Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return float(array.mean()), error


def where(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def column(rows: Iterable[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def values(rows: Iterable[Row], name: str) -> list[object]:
    """The different values of a column, in their order."""
    return list(dict.fromkeys(row[name] for row in rows if name in row))


def slope(x: Sequence[float], y: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Of the least-squares line; weights: 1 / standard error of each y."""
    if len(x) < 2:
        raise ValueError(f"A slope needs two points. Got {len(x)}.")
    return float(np.polyfit(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64), 1, w=weights)[0])
