"""How well held-out targets are predicted: coverage, probability integral transform, residuals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from rtgp._report.calibration import NINETY, coverage_curve, normal_quantiles, pit
from rtgp._report.content import Array, Predictions, Run
from rtgp._report.style import Where, axes, figure, legend, line_width, muted, plain, series

MOST_POINTS = 1500  # of a scatter: more only make the file heavier
BINS = 20


def coverage_plot(runs: Sequence[Run], where: Where | None = None) -> Where:
    """Observed against stated probability of the central intervals."""
    drawn = where or figure()
    on = axes(drawn, x="stated probability of the interval", y="observed share inside")
    on.plot([0, 1], [0, 1], color=muted(), linewidth=1, linestyle="--", label="exact")
    for i, run, predictions in _predicting(runs):
        stated, observed = coverage_curve(predictions)
        on.plot(
            stated,
            observed,
            color=series(i),
            linewidth=line_width(i),
            marker="o",
            markersize=2.8,
            label=plain(run.name),
        )
    on.set_xlim(0, 1)
    on.set_ylim(0, 1)
    legend(on, loc="upper left")
    return drawn


def pit_histogram(run: Run, predictions: Predictions, i: int) -> Figure:
    """Flat where the predictive distributions are right; a hump in the middle: too wide; at the ends: too narrow."""
    drawn = figure()
    on = axes(drawn, title=run.name, x="predictive probability below the target (PIT)", y="density")
    values, m = pit(predictions), len(predictions)
    on.hist(values, bins=np.linspace(0, 1, BINS + 1).tolist(), density=True, color=series(i), alpha=0.75)
    error = 2 * np.sqrt((1 - 1 / BINS) * BINS / m)  # two standard errors of a bar's height
    on.axhspan(max(0.0, 1 - error), 1 + error, color=muted(), alpha=0.18, linewidth=0)
    on.axhline(1.0, color=muted(), linewidth=1, linestyle="--")
    on.set_xlim(0, 1)
    return drawn


def predicted_against_target(
    run: Run, predictions: Predictions, i: int, unit: str, where: Where | None = None
) -> Where:
    """Points on the diagonal are exact."""
    drawn = where or figure()
    on = axes(drawn, title=run.name, x=f"predicted {unit}", y=f"observed {unit}")
    index = _some(len(predictions))
    on.scatter(predictions.mean[index], predictions.y[index], s=7, color=series(i), alpha=0.55, linewidths=0)
    low, high = _range(np.concatenate([predictions.mean, predictions.y]))
    on.plot([low, high], [low, high], color=muted(), linewidth=1, linestyle="--")
    return drawn


def residuals_plot(run: Run, predictions: Predictions, i: int, unit: str) -> Figure:
    """Standardised residuals against the prediction: a pattern is something the model misses."""
    drawn = figure()
    on = axes(drawn, title=run.name, x=f"predicted {unit}", y="residual / predicted std")
    index = _some(len(predictions))
    on.scatter(predictions.mean[index], predictions.z[index], s=7, color=series(i), alpha=0.55, linewidths=0)
    on.axhline(0.0, color=muted(), linewidth=1)
    for level in (-NINETY, NINETY):
        on.axhline(level, color=muted(), linewidth=1, linestyle="--")
    return drawn


def quantile_plot(run: Run, predictions: Predictions, i: int) -> Figure:
    """Ordered standardised residuals against those of a normal distribution."""
    drawn = figure()
    on = axes(drawn, title=run.name, x="normal quantile", y="residual / predicted std")
    z, expected = np.sort(predictions.z), normal_quantiles(len(predictions))
    # The ends tell most: thin out the middle only.
    index = np.unique(np.r_[: min(60, len(z)), _some(len(z)), max(0, len(z) - 60) : len(z)])
    on.plot([-3.5, 3.5], [-3.5, 3.5], color=muted(), linewidth=1, linestyle="--")
    on.scatter(expected[index], z[index], s=7, color=series(i), alpha=0.7, linewidths=0)
    return drawn


def _predicting(runs: Sequence[Run]) -> list[tuple[int, Run, Predictions]]:
    return [(i, run, run.predictions) for i, run in enumerate(runs) if run.predictions is not None]


def _some(m: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.unique(np.linspace(0, m - 1, min(m, MOST_POINTS)).astype(np.intp))


def _range(values: Array) -> tuple[float, float]:
    return float(values.min()), float(values.max())
