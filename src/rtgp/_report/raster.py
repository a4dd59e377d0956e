"""Very many points on a map: the mean of those that fall into each cell of a raster, and no dot for each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rtgp._report.content import Array

MOST_CELLS = 240  # along the longer side: what a figure can show
POINTS_OF_A_CELL = 4  # that a raster of few points has on average


@dataclass(frozen=True, eq=False)
class Raster:
    """Values on the cells of a rectangle, NaN where no point lies. x, y: the middles of the cells."""

    x: Array  # (width,)
    y: Array  # (height,)
    values: Array  # (height, width)


def raster(points: Array, values: Array, most_cells: int = MOST_CELLS) -> Raster:
    """The mean of values (m,) over the cells in which the points (m, 2) lie; finer for more points."""
    side = int(min(most_cells, max(1.0, math.sqrt(len(points) / POINTS_OF_A_CELL))))
    low, high = points.min(axis=0), points.max(axis=0)
    width = np.where(high > low, high - low, 1.0) / side
    place = np.minimum(((points - low) / width).astype(np.intp), side - 1)
    cell = place[:, 1] * side + place[:, 0]
    count = np.bincount(cell, minlength=side * side)
    total = np.bincount(cell, weights=values, minlength=side * side)
    with np.errstate(invalid="ignore"):
        mean = (total / np.where(count > 0, count, np.nan)).reshape(side, side)
    middles = (np.arange(side) + 0.5)[:, None] * width + low
    return Raster(middles[:, 0], middles[:, 1], mean)
