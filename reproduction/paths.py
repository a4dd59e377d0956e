"""Items that show the exact objective along training runs: Fig. 4, S2, 5 and S3."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from matplotlib.figure import Figure

from reproduction import models
from reproduction.drawing import axes, figure, legend, line
from reproduction.methods import LABELS
from reproduction.spec import Cell, Row, Setting, Spec
from reproduction.statistics import column, values, where
from rtgp._estimator.model import GPYTORCH_START, new_model
from rtgp._report import Table

SETS = {"pol": "PoleTele", "bike": "Bike", "elevators": "Elevators", "kin40k": "Kin40K", "protein": "Protein"}
SETS |= {"keggdirected": "KEGG", "keggundirected": "KEGGU", "3droad": "3DRoad", "precipitation": "Precipitation"}
OPTIMUM = "optimum"  # a cell of every set: the exact objective trained to the end by L-BFGS
LEAST = 5e-4  # gap per point below which the figures do not look
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.2)))  # the runs of one method, by size


class PathSpec(Spec):
    """Cells: set, method, size, n, steps, rate. Rows: step, objective."""

    every: ClassVar[int] = 5

    @abstractmethod
    def figure_names(self) -> dict[str, str]:
        """The figure of each set."""

    def run(self, cell: Cell, setting: Setting) -> list[Row]:
        data = models.load(setting, str(cell["set"]), 10, int(cell["n"]))
        if cell["method"] == OPTIMUM:
            return [{"step": 0, "objective": models.exact_objective(models.fitted_exactly(data.x, data.y))}]
        model = new_model(data.x, data.y, "rbf", None, GPYTORCH_START)
        method = setting.methods[str(cell["method"])](int(cell["size"]))
        steps = int(cell["steps"])
        every = max(self.every, steps // 100)
        path = models.train(model.train(), method, torch.optim.Adam, steps, float(cell["rate"]), 0, every, setting)
        rows: list[Row] = [
            {"step": step, "objective": models.exact_objective(model, state)}
            for step, state in zip(path.steps, path.states, strict=True)
        ]
        rows[-1] = {**rows[-1], "seconds": path.seconds, "ended": path.ended or "all steps"}
        return rows

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        made = {}
        for name, file in self.figure_names().items():
            mine = where(rows, set=name)
            if not mine:
                continue
            n, best = int(mine[0]["n"]), optimum(mine)
            drawn = figure(6.6, 3.7)
            title = f"{SETS[name]}, {n:,} points"
            on = axes(drawn, title, "step of Adam", "exact objective per point above the optimum")
            mine = [row for row in mine if row["method"] != OPTIMUM]
            for method in values(mine, "method"):
                for k, size in enumerate(values(where(mine, method=method), "size")):
                    some = where(mine, method=method, size=size)
                    label = LABELS[str(method)] + (f", {size}" if size else "")
                    x, y = column(some, "step"), [max(value - best, LEAST) for value in column(some, "objective")]
                    wide = {"linewidth": 3.2, "alpha": 0.35} if method == "cholesky" else {}
                    line(on, str(method), x, y, label, linestyle=_DASHES[k % 3], **wide)
            on.set_yscale("log")
            legend(on, ncols=2, loc="best")
            made[file] = drawn
        return made

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        head = [
            "method",
            *(f"{SETS[name]} (n = {_points(rows, name):,})" for name in self.figure_names() if where(rows, set=name)),
        ]
        lines = []
        for method in values(rows, "method"):
            if method == OPTIMUM:
                continue
            for size in sorted({int(row["size"]) for row in where(rows, method=method)}):
                cells = [LABELS[str(method)] + (f", {size}" if size else "")]
                for name in self.figure_names():
                    mine, some = where(rows, set=name), where(rows, set=name, method=method, size=size)
                    if mine:
                        cells.append(f"{end_gap(mine, some):+.4f}" if some else "–")
                lines.append(cells)
        note = "Exact objective per point above its optimum (by L-BFGS): mean of the last fifth of a run."
        return [Table(head, lines, note)]


def _points(rows: Sequence[Row], name: str) -> int:
    return int(where(rows, set=name)[0]["n"])


def optimum(rows: Sequence[Row]) -> float:
    """The least exact objective that any run has met, L-BFGS among them."""
    return min(float(row["objective"]) for row in rows if not math.isnan(float(row["objective"])))


def end_gap(all_rows: Sequence[Row], run: Sequence[Row]) -> float:
    """How far above the optimum a run ends: the mean over its last fifth, which averages the noise of single steps."""
    tail = run[-max(1, len(run) // 5) :]
    return sum(float(row["objective"]) for row in tail) / len(tail) - optimum(all_rows)
