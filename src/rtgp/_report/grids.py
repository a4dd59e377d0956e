"""The posterior on a grid, where it can be drawn: the numbers of the picture, which need no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rtgp._report.content import Array, Curve, Slice, Slices, Surface

CURVE_POINTS = 300
MAP_WIDTH, MAP_HEIGHT = 100, 75
MOST_SLICES, SLICE_POINTS = 6, 60
RELEVANCE_ROWS = 8000  # predictions in all, shared by the inputs
FEWEST_ROWS = 40  # for each of them


def picture_of(
    predict: Callable[..., Any], X: Array, y: Array, names: Sequence[str], target: str, seed: int = 0
) -> Curve | Surface | Slices:
    """The picture of a regressor's posterior over the range of its data: a curve, maps, or slices.

    predict(frame) -> mean; predict(frame, return_std=True) -> mean, std.
    """
    import pandas as pd

    if X.shape[1] == 1:
        pad = 0.05 * float(np.ptp(X))
        grid = np.linspace(X.min() - pad, X.max() + pad, CURVE_POINTS)
        mean, std = predict(pd.DataFrame(grid[:, None], columns=list(names)), return_std=True)
        return Curve(grid, mean, std, X[:, 0], y, names[0], target)
    if X.shape[1] == 2:
        across, up, points = grid_over(X, MAP_WIDTH, MAP_HEIGHT)
        mean, std = predict(pd.DataFrame(points, columns=list(names)), return_std=True)
        shape = (MAP_HEIGHT, MAP_WIDTH)
        grids = mean.reshape(shape), std.reshape(shape)
        return Surface(across, up, *grids, X, names[0], names[1], target, data=y)
    return slices_picture(predict, X, y, names, target, seed)


def slices_picture(
    predict: Callable[..., Any], X: Array, y: Array, names: Sequence[str], target: str, seed: int = 0
) -> Slices:
    """Slices along the most relevant inputs, and the relevance of all."""
    relevance = relevance_of(predict, X, float(np.std(y)), names, seed)
    return Slices(slices_of(predict, X, names, list(relevance)[:MOST_SLICES]), relevance, target)


def relevance_of(
    predict: Callable[..., Any], X: Array, unit: float, names: Sequence[str], seed: int = 0
) -> dict[str, float]:
    """By how much predictions change where one input is that of another row: root mean square over `unit`, the largest
    first."""
    import pandas as pd

    rng, d = np.random.default_rng(seed), X.shape[1]
    count = min(len(X), max(FEWEST_ROWS, RELEVANCE_ROWS // d))
    rows = X[rng.choice(len(X), count, replace=False)]
    changed = np.repeat(rows[None], d, axis=0)  # (d, rows, d)
    for j in range(d):
        changed[j, :, j] = rng.permutation(rows[:, j])
    means = predict(pd.DataFrame(np.vstack([rows, *changed]), columns=list(names))).reshape(d + 1, -1)
    found = np.sqrt(np.mean((means[1:] - means[0]) ** 2, axis=1)) / unit
    return {names[j]: float(found[j]) for j in np.argsort(-found, kind="stable")}


def slices_of(predict: Callable[..., Any], X: Array, names: Sequence[str], shown: Sequence[str]) -> list[Slice]:
    """The posterior along each of the inputs `shown`, all others at their medians."""
    import pandas as pd

    middle, slices = np.median(X, axis=0), []
    for name in shown:
        j = list(names).index(name)
        points = np.repeat(middle[None], SLICE_POINTS, axis=0)
        points[:, j] = np.linspace(X[:, j].min(), X[:, j].max(), SLICE_POINTS)
        mean, std = predict(pd.DataFrame(points, columns=list(names)), return_std=True)
        slices.append(Slice(name, points[:, j], mean, std))
    return slices


def grid_over(X: Array, width: int, height: int, margin: float = 0.02) -> tuple[Array, Array, Array]:
    """Axis values and the (height * width, 2) points of a grid that covers the data, with a margin."""
    low, high = X.min(axis=0), X.max(axis=0)
    pad = margin * np.where(high > low, high - low, 1.0)
    x = np.linspace(low[0] - pad[0], high[0] + pad[0], width)
    y = np.linspace(low[1] - pad[1], high[1] + pad[1], height)
    across, up = np.meshgrid(x, y)
    return x, y, np.column_stack([across.ravel(), up.ravel()])


def degrees_aspect(latitudes: Array) -> float:
    """One degree of latitude over one of longitude, in the middle of the map."""
    return 1.0 / math.cos(math.radians(float(np.mean(latitudes))))
