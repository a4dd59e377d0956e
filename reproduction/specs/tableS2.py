"""Table S2: how long the methods of Table S1 train."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from reproduction.drawing import axes, error_bars, figure, legend
from reproduction.evaluation import timed
from reproduction.methods import LABELS
from reproduction.paths import SETS
from reproduction.published import published
from reproduction.spec import INCOMPLETE, Cell, Check, Row, Setting, Size, Spec, Verdict, concluded
from reproduction.specs import table1
from reproduction.statistics import column, mean_and_error, values, where
from rtgp._report import Table


class TableS2(Spec):
    name = "tableS2"
    title = "Table S2"
    claim = "RR-CG trains in about the time of CG; both are faster than Cholesky on the small sets."
    settings = (
        "The schedules of Table S1 on its first split (CG and RR-CG with the paper's number of steps), one after the "
        "other on one card with nothing else to do, in one run. "
        "Cholesky with L-BFGS (from hyperparameters fitted on 1,000 points, like RRCG(), until a step lowers the "
        "objective by less than 1e-6 of itself), RRCG() and POE are run whole, the first two after two steps that do "
        "not count (on a new machine they compile kernels for 20 s); of the others the first steps are, and the mean "
        "of those is multiplied by their number. Cholesky is in float64, the others in float32.",
        "RRCG() must take at most a tenth of the published RR-CG time, the published one being on the authors' "
        "hardware.",
    )

    alone = True

    def cells(self, size: Size = "full") -> list[Cell]:
        cells = [cell for cell in table1.SPEC.cells(size) if cell["split"] == table1.SPLITS[0]]
        # As many steps as the paper took: the first ones are run, and multiplied.
        long = {"schedule": table1.PAPER_ON_MEDIUM}
        cells = [{**cell, **long} if cell["schedule"] == table1.ON_MEDIUM else cell for cell in cells]
        return sorted(cells, key=lambda cell: list(SETS).index(str(cell["set"])))

    def run(self, cell: Cell, setting: Setting) -> list[Row]:
        return [timed(setting, *table1.data_and_training(cell, setting, self.name))]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        checks, ratios = [], []
        for name in map(str, values(where(rows, method="rr-cg-ours"), "set")):
            ours = _seconds(rows, name, "rr-cg-ours")
            paper = published(name, "rr-cg", "minutes")
            if paper is not None and not int(rows[0]["n"]):
                words = f"{ours:.0f} s against {60 * paper.mean:.0f} s"
                checks.append(Check(f"{SETS[name]}: a tenth of the published RR-CG", ours <= 6 * paper.mean, words))
            compared = [m for m in ("cholesky", "cg", "rr-cg") if where(rows, set=name, method=m)]
            others = {m: _seconds(rows, name, m) / ours for m in compared}
            if others:
                ratios.append(f"{SETS[name]}: " + ", ".join(f"{LABELS[m]} {r:.1f}" for m, r in others.items()) + ".")
        words = f"Time over that of RRCG(). {' '.join(ratios)}"
        if int(rows[0]["n"]):
            return Verdict(INCOMPLETE, f"{words} The published times are for the whole sets: nothing to compare here.")
        return concluded(checks, words)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        drawn = figure(7.0, 3.6)
        on = axes(drawn, x="", y="seconds of training")
        names = [str(name) for name in values(rows, "set")]
        methods = [m for m in table1.METHODS if where(rows, method=m)]
        for k, method in enumerate(methods):
            there = [i for i, name in enumerate(names) if where(rows, set=name, method=method)]
            at = [i + 0.7 * ((k + 0.5) / len(methods) - 0.5) for i in there]
            seconds = [_seconds(rows, names[i], method) for i in there]
            error_bars(on, method, at, seconds, [0.0] * len(at), linestyle="none", capsize=0, markersize=7)
        on.set_yscale("log")
        on.set_xticks(range(len(names)), [SETS[name] for name in names])
        legend(on, ncols=3, loc="upper left", bbox_to_anchor=(0.0, -0.1))
        return {"tableS2": drawn}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        names = [str(name) for name in values(rows, "set")]
        lines = []
        for method in table1.METHODS:
            cells = [LABELS[method]]
            for name in names:
                found = where(rows, set=name, method=method)
                paper = published(name, method, "minutes")
                ours = f"{_seconds(rows, name, method):.1f}" if found else "–"
                whole = paper is not None and not int(rows[0]["n"])
                cells.append(f"{ours} [{60 * paper.mean:.0f}]" if whole and paper else ours)
            lines.append(cells)
        return [Table(["method", *(SETS[name] for name in names)], lines, "Seconds; in brackets the paper's.")]


def _seconds(rows: Sequence[Row], name: str, method: str) -> float:
    return mean_and_error(column(where(rows, set=name, method=method), "seconds"))[0]


SPEC = TableS2()
