"""A loop of Bayesian optimisation, by our solver and by plain BoTorch: seconds of a round, and regret, against n.

    python docs/pictures/loop.py    # draws loop-light.svg and loop-dark.svg

Rows: benchmarks/results/botorch_rounds.csv.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from themes import THEMES, plain_axes

HERE = Path(__file__).parent
ROWS = HERE.parents[1] / "benchmarks" / "results" / "botorch_rounds.csv"
ARMS = {"rtgp": ("RR-CG", "rtgp", "o"), "botorch": ("CG", "plain BoTorch", "s")}  # colour, name, marker
SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "loop"}
NO_METADATA = {"Date": None, "Creator": None}

Rows = list[dict[str, str]]


def read() -> Rows:
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def curve(rows: Rows, arm: str, column: str) -> list[tuple[int, float, float, float]]:
    """(n, median, least, most) over the seeds, in order of n."""
    of_arm = [row for row in rows if row["arm"] == arm]
    found = []
    for n in sorted({int(row["n"]) for row in of_arm}):
        values = [float(row[column]) for row in of_arm if int(row["n"]) == n]
        found.append((n, statistics.median(values), min(values), max(values)))
    return found


def _panel(axes: Axes, rows: Rows, column: str, theme: str) -> None:
    color = THEMES[theme]
    for arm, (shade, name, marker) in ARMS.items():
        n, middle, least, most = zip(*curve(rows, arm, column), strict=True)
        axes.plot(n, middle, color=color[shade], marker=marker, markersize=3.5, linewidth=1.6, label=name)
        axes.fill_between(n, least, most, color=color[shade], alpha=0.18, linewidth=0)
    axes.set_yscale("log")
    axes.set_xlabel("observations", color=color["ink"])


def draw(rows: Rows, theme: str) -> Figure:
    color = THEMES[theme]
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    figure.patch.set_alpha(0.0)
    panels = {"seconds": "seconds of a round", "regret": "regret of the best observation"}
    for number, (column, label) in enumerate(panels.items()):
        axes = plain_axes(figure.add_subplot(1, 2, number + 1), theme)
        _panel(axes, rows, column, theme)
        axes.set_ylabel(label, color=color["ink"])
        if number == 0:
            axes.legend(frameon=False, labelcolor=color["ink"], fontsize=9, loc="upper left")
    return figure


def main() -> None:
    for theme in THEMES:
        with matplotlib.rc_context(SETTINGS):
            draw(read(), theme).savefig(HERE / f"loop-{theme}.svg", metadata=NO_METADATA)


if __name__ == "__main__":
    main()
