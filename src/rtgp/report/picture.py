"""The posterior itself, where it can be drawn: over one input a curve with its band, over two a pair of maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from rtgp.report.content import Array, Curve, Surface
from rtgp.report.style import INK, MUTED, axes, figure, legend, plain, series

MOST_POINTS = 3000
CURVE_POINTS = 300
MAP_WIDTH, MAP_HEIGHT = 100, 75


def curve_figure(curve: Curve) -> Figure:
    """Mean, 90% band and data."""
    drawn = figure(7.2, 3.8)
    on = axes(drawn, x=curve.x_name, y=curve.y_name)
    index = _some(len(curve.data_x))
    on.scatter(curve.data_x[index], curve.data_y[index], s=8, color=MUTED, alpha=0.6, linewidths=0, label="data")
    low, high = curve.mean - 1.645 * curve.std, curve.mean + 1.645 * curve.std
    on.fill_between(curve.x, low, high, color=series(0), alpha=0.25, linewidth=0, label="90% interval")
    on.plot(curve.x, curve.mean, color=series(0), linewidth=1.6, label="mean")
    legend(on)
    return drawn


def mean_map(surface: Surface) -> Figure:
    """The predicted mean over the two inputs."""
    return _map(surface, surface.mean, f"predicted {surface.value_name}", "viridis", points=False)


def uncertainty_map(surface: Surface) -> Figure:
    """The predicted standard deviation over the two inputs, with the places of the data."""
    return _map(surface, surface.std, f"standard deviation of {surface.value_name}", "magma", points=True)


def _map(surface: Surface, values: Array, label: str, colors: str, points: bool) -> Figure:
    x_range, y_range = np.ptp(surface.x), np.ptp(surface.y)
    shape = surface.aspect * y_range / x_range if surface.aspect else 0.75
    drawn = figure(4.8, min(6.0, max(2.6, 4.2 * shape + 1.2)))
    on = axes(drawn, x=surface.x_name, y=surface.y_name)
    on.grid(False)
    extent = (*_edges(surface.x), *_edges(surface.y))
    shown = on.imshow(
        np.ma.masked_invalid(values),
        extent=extent,
        origin="lower",
        cmap=colors,
        interpolation="nearest",
        aspect=surface.aspect or "auto",
    )
    if points:
        index = _some(len(surface.points))
        across, up = surface.points[index].T
        on.scatter(across, up, s=1.2, color="#ffffff", alpha=0.45, linewidths=0, rasterized=True)
        on.set_xlim(extent[0], extent[1])
        on.set_ylim(extent[2], extent[3])
    bar = drawn.colorbar(shown, ax=on, location="bottom", shrink=0.8, aspect=30, pad=0.03)
    bar.ax.tick_params(colors=MUTED, labelsize=8.5, length=3)
    bar.set_label(plain(label), fontsize=9, color=INK)
    bar.outline.set_visible(False)
    return drawn


def picture_of(
    predict: Callable[..., tuple[Array, Array]], X: Array, y: Array, names: Sequence[str], target: str
) -> Curve | Surface | None:
    """The picture of a regressor's posterior over the range of its data; None for more than two inputs.

    predict(frame, return_std=True) -> mean, std.
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
        return Surface(across, up, mean.reshape(shape), std.reshape(shape), X, names[0], names[1], target)
    return None


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


def _edges(values: Array) -> tuple[float, float]:
    half = (values[1] - values[0]) / 2
    return float(values[0] - half), float(values[-1] + half)


def _some(n: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).astype(np.intp))
