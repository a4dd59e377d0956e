"""The posterior itself, where it can be drawn: over one input a curve with its band, over two a pair of maps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.colors import BoundaryNorm, Normalize
from matplotlib.ticker import MaxNLocator

from rtgp._report.calibration import NINETY
from rtgp._report.content import Array, Curve, Predictions, Slice, Slices, Surface
from rtgp._report.raster import raster
from rtgp._report.style import Where, axes, figure, ink, legend, muted, plain, series

MOST_POINTS = 3000
MOST_BARS = 20


def curve_figure(curve: Curve, where: Where | None = None) -> Where:
    """Mean, 90% band and data."""
    drawn = where or figure(7.2, 3.8)
    on = axes(drawn, x=curve.x_name, y=curve.y_name)
    index = _some(len(curve.data_x))
    on.scatter(curve.data_x[index], curve.data_y[index], s=8, color=muted(), alpha=0.6, linewidths=0, label="data")
    low, high = curve.mean - NINETY * curve.std, curve.mean + NINETY * curve.std
    on.fill_between(curve.x, low, high, color=series(0), alpha=0.25, linewidth=0, label="90% interval")
    on.plot(curve.x, curve.mean, color=series(0), linewidth=1.6, label="mean")
    legend(on)
    return drawn


def slice_figure(one: Slice, value_name: str, low: float, high: float, where: Where | None = None) -> Where:
    """Mean and 90% band along one input; low, high: of the vertical axis, the same for all slices."""
    drawn = where or figure(3.6, 2.5)
    on = axes(drawn, x=one.name, y=value_name)
    below, above = one.mean - NINETY * one.std, one.mean + NINETY * one.std
    on.fill_between(one.x, below, above, color=series(0), alpha=0.25, linewidth=0)
    on.plot(one.x, one.mean, color=series(0), linewidth=1.8)
    on.set_ylim(low, high)
    return drawn


def slices_range(slices: Slices) -> tuple[float, float]:
    """A vertical axis that shows all slices with their bands."""
    low = min(float((one.mean - NINETY * one.std).min()) for one in slices.slices)
    high = max(float((one.mean + NINETY * one.std).max()) for one in slices.slices)
    pad = 0.03 * (high - low)
    return low - pad, high + pad


def relevance_height(slices: Slices) -> float:
    """In inches."""
    return 0.9 + 0.27 * min(len(slices.relevance), MOST_BARS)


def relevance_chart(slices: Slices, where: Where | None = None) -> Where:
    """A bar for each input, the most relevant first."""
    shown = list(slices.relevance.items())[:MOST_BARS]
    drawn = where or figure(4.6, relevance_height(slices))
    on = axes(drawn, x=f"change of the prediction, in sd of {slices.value_name}")
    places = range(len(shown))
    on.barh(places, [value for _, value in shown], color=series(0), height=0.65)
    on.set_yticks(places, [plain(name) for name, _ in shown], color=ink())
    on.invert_yaxis()
    on.grid(False, axis="y")
    return drawn


def mean_map(surface: Surface, where: Where | None = None) -> Where:
    """The predicted mean over the two inputs."""
    return _map(surface, surface.mean, f"predicted {surface.value_name}", "viridis", False, where)


def uncertainty_map(surface: Surface, where: Where | None = None) -> Where:
    """The predicted standard deviation over the two inputs, with the places of the data."""
    return _map(surface, surface.std, f"standard deviation of {surface.value_name}", "YlOrRd", True, where)


def data_map(surface: Surface, data: Array) -> Where:
    """What was observed, by cells, in the colours of the predicted mean."""
    found, shown = raster(surface.points, data), surface.mean[np.isfinite(surface.mean)]
    cells = replace(surface, x=found.x, y=found.y)
    limits = (float(shown.min()), float(shown.max())) if shown.size else None
    return _map(cells, found.values, f"observed {surface.value_name}", "viridis", points=False, limits=limits)


def residual_map(surface: Surface, predictions: Predictions, places: Array) -> Where:
    """Standardised residuals, by cells: patches of one colour are something that the model misses."""
    found = raster(places, predictions.z)
    cells = replace(surface, x=found.x, y=found.y)
    limits = (-2 * NINETY, 2 * NINETY)
    return _map(cells, found.values, "residual / predicted std", "coolwarm", points=False, limits=limits)


def map_height(surface: Surface) -> float:
    """In inches."""
    x_range, y_range = np.ptp(_edges(surface.x)), np.ptp(_edges(surface.y))
    shape = surface.aspect * y_range / x_range if surface.aspect else 0.75
    return float(min(6.0, max(2.6, 4.2 * shape + 1.2)))


def _map(
    surface: Surface,
    values: Array,
    label: str,
    colors: str,
    points: bool,
    where: Where | None = None,
    limits: tuple[float, float] | None = None,
) -> Where:
    drawn = where or figure(4.8, map_height(surface))
    on = axes(drawn, x=surface.x_name, y=surface.y_name)
    on.grid(False)
    extent = (*_edges(surface.x), *_edges(surface.y))
    norm = _bands(values) if points else None if limits is None else Normalize(*limits)
    shown = on.imshow(
        np.ma.masked_invalid(values),
        extent=extent,
        origin="lower",
        cmap=colors,
        norm=norm,
        interpolation="nearest",
        aspect=surface.aspect or "auto",
    )
    if points:
        index = _some(len(surface.points))
        across, up = surface.points[index].T
        on.scatter(across, up, s=1.2, color="#202020", alpha=0.55, linewidths=0, rasterized=True)
        on.set_xlim(extent[0], extent[1])
        on.set_ylim(extent[2], extent[3])
    bar = drawn.colorbar(shown, ax=on, location="bottom", shrink=0.8, aspect=30, pad=0.03)
    bar.ax.tick_params(colors=muted(), labelsize=8.5, length=3)
    bar.set_label(plain(label), fontsize=9, color=ink())
    bar.outline.set_visible(False)
    return drawn


def _bands(values: Array) -> BoundaryNorm:
    """A few bands between round numbers: a reader tells them apart, where shades run into each other."""
    seen = values[np.isfinite(values)]
    levels = MaxNLocator(nbins=6).tick_values(float(seen.min()), float(np.quantile(seen, 0.98)))
    return BoundaryNorm(levels, ncolors=256, extend="max" if seen.max() > levels[-1] else "neither")


def _edges(values: Array) -> tuple[float, float]:
    half = (values[1] - values[0]) / 2 if len(values) > 1 else 0.5
    return float(values[0] - half), float(values[-1] + half)


def _some(n: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).astype(np.intp))
