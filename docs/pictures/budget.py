"""What is left at the end of training against the iterations of each step, for plain CG and for RR-CG.

    python docs/pictures/budget.py    # draws budget-light.svg and budget-dark.svg

Rows: benchmarks/results/roulette_budget.csv.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from themes import THEMES, plain_axes

HERE = Path(__file__).parent
ROWS = HERE.parents[1] / "benchmarks" / "results" / "roulette_budget.csv"
SETS = ("kin40k", "pol")
METHODS = {"CG": "cg-", "RR-CG": "rr-cg"}  # and how the rows' names begin
SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "budget"}
NO_METADATA = {"Date": None, "Creator": None}
SMALL = 1e-4  # per point: below this the axis is linear

Rows = list[dict[str, str]]


def read() -> Rows:
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def curve(rows: Rows, name: str, method: str) -> list[tuple[float, float, float]]:
    """(iterations of a step, gap to the exact optimum per point, its standard error), means over seeds, in order."""
    of_set = [row for row in rows if row["set"] == name]
    optimum = next(float(row["objective"]) for row in of_set if row["method"] == "exact")
    found = []
    for label in dict.fromkeys(row["method"] for row in of_set if row["method"].startswith(METHODS[method])):
        some = [row for row in of_set if row["method"] == label]
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
        for method, marker in (("CG", "s"), ("RR-CG", "o")):
            x, y, error = zip(*curve(rows, name, method), strict=True)
            axes.errorbar(x, y, error, color=color[method], label=method, marker=marker, markersize=5, linewidth=1.8)
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
            axes.legend(frameon=False, labelcolor=color["ink"], fontsize=9.5)
    return figure


def main() -> None:
    for theme in THEMES:
        with matplotlib.rc_context(SETTINGS):
            draw(read(), theme).savefig(HERE / f"budget-{theme}.svg", metadata=NO_METADATA)


if __name__ == "__main__":
    main()
