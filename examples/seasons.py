"""A time series with seasons: a trend, a yearly wave whose shape drifts, and noise, learned by RR-CG.

The kernel is a sum of two: a smooth trend, and a periodic kernel times a slow one. The series is made up, so that the
truth is known. Look at the last three years, which the model has not seen: the wave goes on where it should, and about
90% of the weeks lie inside the 90% interval. The period is learned too, and comes out at one year.

    python examples/seasons.py
"""

from __future__ import annotations

import sys

import gpytorch
import numpy as np
from matplotlib.figure import Figure

import rtgp

YEARS, HIDDEN, WEEKS = 20, 3, 52


def series() -> tuple[np.ndarray, np.ndarray]:
    """Time in years (n, 1), and a value for each week (n,)."""
    t = np.arange(YEARS * WEEKS) / WEEKS
    wave = (1.0 + 0.03 * t) * np.sin(2 * np.pi * t) + 0.4 * np.cos(4 * np.pi * t)
    return t[:, None], 0.02 * t**2 + wave + 0.3 * np.random.default_rng(0).normal(size=len(t))


def kernel() -> gpytorch.kernels.Kernel:
    trend = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    trend.base_kernel.lengthscale, trend.outputscale = 10.0, 4.0
    periodic, slow = gpytorch.kernels.PeriodicKernel(), gpytorch.kernels.RBFKernel()
    periodic.period_length, slow.lengthscale = 0.98, 20.0  # begun a little off
    return trend + gpytorch.kernels.ScaleKernel(periodic * slow)


def picture(t: np.ndarray, y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Figure:
    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(t[:, 0], y, ".", color="#5c6570", markersize=2.5, label="weeks")
    axes.fill_between(t[:, 0], mean - 1.645 * std, mean + 1.645 * std, color="#1f6fb4", alpha=0.3, label="90% interval")
    axes.plot(t[:, 0], mean, color="#1f6fb4", linewidth=1.2, label="mean")
    axes.axvspan(YEARS - HIDDEN, YEARS, color="#c4561a", alpha=0.12, label="not seen")
    axes.set_xlim(YEARS - 10, YEARS)
    axes.set_xlabel("year")
    axes.legend(frameon=False, ncols=4, loc="upper left", fontsize=9)
    return figure


def main() -> None:
    t, y = series()
    seen = t[:, 0] < YEARS - HIDDEN
    gp = rtgp.GPRegressor(kernel=kernel(), method="rr-cg", standardize=False, dtype="float64", random_state=0)
    gp.fit(t[seen], y[seen] - y[seen].mean())
    print(f"{seen.sum()} weeks, {gp.fit_result_.steps} steps: {gp.fit_result_.status.value}")
    (name,) = [name for name in gp.hyperparameters_ if name.startswith("period_length")]
    print(f"period {gp.hyperparameters_[name]:.4f} +- {gp.hyperparameter_errors_[name]:.4f} years")
    mean, std = gp.predict(t, return_std=True)
    mean = mean + y[seen].mean()
    inside = np.abs(mean - y)[~seen] < 1.645 * std[~seen]
    error = np.sqrt(np.mean((mean - y)[~seen] ** 2))
    print(f"{len(inside)} weeks not seen: RMSE {error:.2f} of {y[~seen].std():.2f}; {inside.mean():.0%} inside")
    if len(sys.argv) > 1:
        picture(t, y, mean, std).savefig(sys.argv[1], dpi=80)


if __name__ == "__main__":
    main()
