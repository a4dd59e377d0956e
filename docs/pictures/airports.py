"""The maps of the tutorial: elevation as learned from its airports, and how sure the model is of it.

python docs/pictures/airports.py    # less than a minute: writes airports.png
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.spatial import cKDTree

import rtgp

HERE = Path(__file__).parent
REACH = 0.8  # degrees from the nearest of all airports beyond which the map stays blank: sea, Canada, Mexico
WIDTH, HEIGHT = 240, 120
GREY = "#768390"  # read on a light page and on a dark one


def maps() -> tuple[np.ndarray, list[float], np.ndarray, np.ndarray]:
    """Training points (n, 2), extent of the map, mean and standard deviation (HEIGHT, WIDTH)."""
    airports = rtgp.datasets.load("us-airports")
    train = airports.subset(500, seed=0).split(seed=0, standardise=False).train
    gp = rtgp.GPRegressor(kernel="matern32", random_state=0).fit(train.X, train.y)
    (west, south), (east, north) = airports.X.min(0), airports.X.max(0)
    grid = np.stack(np.meshgrid(np.linspace(west, east, WIDTH), np.linspace(south, north, HEIGHT)), axis=-1)
    flat = grid.reshape(-1, 2)
    near = cKDTree(airports.X).query(flat)[0] < REACH
    mean, std = (np.full(len(flat), np.nan) for _ in range(2))
    mean[near], std[near] = gp.predict(flat[near], return_std=True, include_noise=False)
    return train.X, [west, east, south, north], mean.reshape(HEIGHT, WIDTH), std.reshape(HEIGHT, WIDTH)


def draw(points: np.ndarray, extent: list[float], mean: np.ndarray, std: np.ndarray) -> Figure:
    figure = Figure(figsize=(8.6, 2.45), layout="constrained")
    figure.patch.set_alpha(0.0)
    for i, (values, title, colors) in enumerate(((mean, "elevation, feet", "viridis"), (std, "+- feet", "magma"))):
        axes = figure.add_subplot(1, 2, i + 1)
        shown = axes.imshow(values, origin="lower", extent=extent, aspect=1.28, cmap=colors, interpolation="nearest")
        axes.plot(*points.T, ".", color="white", markersize=1.2, alpha=0.5)
        axes.set_title(title, loc="left", fontsize=10, color=GREY)
        axes.set_axis_off()
        bar = figure.colorbar(shown, ax=axes, shrink=0.75)
        bar.ax.tick_params(colors=GREY, labelsize=8)
        bar.outline.set_visible(False)
    return figure


def main() -> None:
    draw(*maps()).savefig(HERE / "airports.png", dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
