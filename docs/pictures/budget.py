"""What is left at the end of training against the iterations of each step, for plain CG and for RR-CG, after few steps
and after many.

    python docs/pictures/budget.py    # draws budget-light.svg and budget-dark.svg

Rows: benchmarks/results/roulette_budget.csv.
"""

from __future__ import annotations

import csv
import statistics
from itertools import product
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from themes import THEMES, plain_axes

HERE = Path(__file__).parent
ROWS = HERE.parents[1] / "benchmarks" / "results" / "roulette_budget.csv"
SETS = ("kin40k", "pol")
METHODS = {"CG": "cg-", "RR-CG": "rr-cg"}  # and how the rows' names begin
STEPS = {150: ((0, (2, 1.5)), 1.2), 1200: ("-", 2.0)}  # and how they are drawn
SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "budget"}
NO_METADATA = {"Date": None, "Creator": None}
SMALL = 1e-4  # per point: below this the axis is linear

Rows = list[dict[str, str]]


def read() -> Rows:
    with ROWS.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["objective"] != "nan"]  # a run that went astray has no end


def curve(rows: Rows, name: str, method: str, steps: int) -> list[tuple[float, float, float]]:
    """(iterations of a step, gap to the exact optimum per point, its standard error), means over seeds, in order."""
    of_set = [row for row in rows if row["set"] == name]
    optimum = next(float(row["objective"]) for row in of_set if row["method"] == "exact")
    found = []
    of_method = [row for row in of_set if row["method"].startswith(METHODS[method]) and row["steps"] == str(steps)]
    for label in dict.fromkeys(row["method"] for row in of_method):
        some = [row for row in of_method if row["method"] == label]
        gaps = [float(row["objective"]) - optimum for row in some]
        error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
        found.append((statistics.fmean(float(row["iterations"]) for row in some), statistics.fmean(gaps), error))
    return sorted(found)


def draw(rows: Rows, theme: str) -> Figure:
    color = THEMES[theme]
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    figure.patch.set_alpha(0.0)
    for number, name in enumerate(SETS):
        axes = plain_axes(figure.add_subplot(1, len(SETS), number + 1), theme)
        for (method, marker), (steps, (style, width)) in product((("CG", "s"), ("RR-CG", "o")), STEPS.items()):
            x, y, error = zip(*curve(rows, name, method, steps), strict=True)
            look = {"color": color[method], "marker": marker, "linestyle": style, "linewidth": width}
            axes.errorbar(x, y, error, label=f"{method}, {steps:,} steps", markersize=2.5 * width, **look)
        axes.axhline(0.0, color=color["muted"], linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=SMALL)
        axes.set_ylim(bottom=-SMALL / 2)
        ticks = [5, 10, 20, 40, 100]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_title(name, color=color["ink"], fontsize=10)
        axes.set_xlabel("iterations of a step", color=color["ink"])
        if number == 0:
            axes.set_ylabel("final gap to the exact optimum, per point", color=color["ink"])
        else:
            axes.legend(frameon=False, labelcolor=color["ink"], fontsize=9, loc="upper right")
    return figure


def main() -> None:
    for theme in THEMES:
        with matplotlib.rc_context(SETTINGS):
            draw(read(), theme).savefig(HERE / f"budget-{theme}.svg", metadata=NO_METADATA)


if __name__ == "__main__":
    main()
