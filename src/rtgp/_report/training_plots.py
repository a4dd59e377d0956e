"""How the training went: objective, hyperparameters, truncations and residuals, run by run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rtgp._report.content import Array, Run
from rtgp._report.style import axes, figure, ink, legend, line_width, muted, plain, series

# Columns of the history that say how a step went, not what the model was.
PROGRESS = frozenset(
    {
        "step",
        "loss",
        "loss_error",
        "gradient_norm",
        "gradient_error",
        "iterations",
        "residual",
        "truncation_first",
        "truncation_second",
        "truncation_probes",
        "rank",
        "neighbours",
        "rebuilt",
        "learning_rate",
        "seconds",
        "phase",
    }
)
TRUNCATIONS = ("truncation_first", "truncation_second", "truncation_probes")
WIDTH_SMALL, HEIGHT_SMALL = 3.6, 2.3  # inches
MOST_TRACES = 12  # lengthscales of further inputs are in the table, not in a picture


def loss_traces(runs: Sequence[Run]) -> Figure | None:
    """The estimated objective against the step."""
    drawn = figure()
    on = axes(drawn, x="step", y="negative log marginal likelihood / n")
    shown = [_trace(on, run, "loss", i) for i, run in enumerate(runs)]
    if not any(shown):
        return None
    on.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(on)
    return drawn


def loss_against_time(runs: Sequence[Run]) -> Figure | None:
    """The same against the clock, from the first step on."""
    drawn = figure()
    on = axes(drawn, x="seconds", y="negative log marginal likelihood / n")
    shown = False
    for i, run in enumerate(runs):
        seconds, loss = run.column("seconds"), run.column("loss")
        good = np.isfinite(seconds) & np.isfinite(loss)
        if good.any():
            on.plot(seconds[good], loss[good], color=series(i), linewidth=line_width(i), label=plain(run.name))
            shown = True
    if not shown:
        return None
    legend(on)
    return drawn


def hyperparameter_names(runs: Sequence[Run]) -> list[str]:
    """The columns of the histories that are hyperparameters, in their order."""
    names: dict[str, None] = {}
    for run in runs:
        for row in run.history:
            names.update(dict.fromkeys(name for name in row if name not in PROGRESS))
            break
    return [name for name in names if any(np.isfinite(run.column(name)).any() for run in runs)]


def hyperparameter_trace(runs: Sequence[Run], name: str) -> Figure:
    """One hyperparameter against the step; on a log scale where it ranges over decades."""
    drawn = figure(WIDTH_SMALL, HEIGHT_SMALL)
    on = axes(drawn, title=name, x="step")
    for i, run in enumerate(runs):
        _trace(on, run, name, i)
    values = np.concatenate([run.column(name) for run in runs])
    values = values[np.isfinite(values)]
    if values.size and (values > 0).all() and values.max() > 100 * values.min():
        on.set_yscale("log")
        on.minorticks_off()
    on.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    return drawn


def truncation_draws(run: Run, i: int) -> Figure | None:
    """Where the roulette stopped, at every step; nothing where the truncation is fixed."""
    steps, lengths = run.column("step"), run.column("truncation_probes")
    lengths = lengths[np.isfinite(lengths)]
    if lengths.size == 0 or lengths.min() == lengths.max():
        return None
    drawn = figure()
    on = axes(drawn, title=run.name, x="step", y="iterations before the series was cut")
    shown = False
    marks = ("o", "v", "_")
    words = ("first y-solve", "second y-solve", "probes (length of the run)")
    for column, mark, word in zip(TRUNCATIONS, marks, words, strict=True):
        values = run.column(column)
        good = np.isfinite(values) & (values > 0)
        if good.any():
            color = ink() if mark == "_" else series(i) if mark == "o" else muted()
            on.scatter(steps[good], values[good], s=11, marker=mark, color=color, linewidths=0.9, label=word)
            shown = True
    if not shown:
        return None
    on.set_ylim(bottom=0)
    on.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(on)
    return drawn


def truncation_histogram(runs: Sequence[Run]) -> Figure | None:
    """How long the runs of conjugate gradients were."""
    lengths = [(i, run, _iterations(run)) for i, run in enumerate(runs)]
    lengths = [(i, run, values) for i, run, values in lengths if values.size]
    if not lengths:
        return None
    drawn = figure()
    on = axes(drawn, x="iterations of a step", y="steps")
    top = max(float(values.max()) for _, _, values in lengths)
    bins = np.linspace(0, top * 1.02 + 1, 31).tolist()
    for i, run, values in lengths:
        on.hist(values, bins=bins, color=series(i), alpha=0.65, label=plain(f"{run.name}: mean {values.mean():.1f}"))
    on.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend(on)
    return drawn


def solver_residuals(runs: Sequence[Run]) -> Figure | None:
    """What was left unsolved at the end of each step's run."""
    drawn = figure()
    on = axes(drawn, x="step", y="relative residual at the end")
    shown = False
    for i, run in enumerate(runs):
        steps, values = run.column("step"), run.column("residual")
        good = np.isfinite(values) & (values > 0)
        if good.any():
            on.scatter(steps[good], values[good], s=9, color=series(i), alpha=0.8, linewidths=0, label=plain(run.name))
            shown = True
    if not shown:
        return None
    on.set_yscale("log")
    on.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(on)
    return drawn


def _iterations(run: Run) -> Array:
    values = run.column("iterations")
    return values[np.isfinite(values) & (values > 0)]


def _trace(on: Axes, run: Run, column: str, i: int) -> bool:
    steps, values = run.column("step"), run.column(column)
    good = np.isfinite(values)
    if not good.any():
        return False
    on.plot(steps[good], values[good], color=series(i), linewidth=line_width(i), label=plain(run.name))
    return True
