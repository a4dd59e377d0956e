"""Fig. 5 and S3: training with CG and RR-CG at 20 and 40 (expected) iterations."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.paths import OPTIMUM, SETS, PathSpec, end_gap
from reproduction.spec import Cell, Check, Row, Size, Verdict, concluded
from reproduction.statistics import where

POINTS: dict[str, dict[Size, int]] = {
    "bike": {"quick": 300, "reduced": 1000, "full": 11_122},
    "pol": {"quick": 400, "reduced": 1000, "full": 9600},
}
NEAR = 0.05  # per point: what counts as reaching the optimum


class Fig5(PathSpec):
    name = "fig5"
    title = "Fig. 5 and S3"
    claim = (
        "On Bike and PoleTele, training with RR-CG at 20 or 40 expected iterations ends at the exact optimum within "
        "100 steps, while training with CG at the same cost does not."
    )
    settings = (
        "RBF kernel, Adam, CG iterations 20 and 40 (stated); rate and preconditioner are not: here one lengthscale per "
        "input, constant rate 0.1, the rank-5 preconditioner of the paper's other runs, 10 probes, float64, 100 steps "
        "from the same start.",
        "The objective is computed exactly along the way; its optimum is found by L-BFGS.",
    )
    departures = ("Preconditioner of rank 15; below its tolerance CG is returned unweighted.",)

    def figure_names(self) -> dict[str, str]:
        return {"bike": "fig5", "pol": "figS3"}

    def cells(self, size: Size = "full") -> list[Cell]:
        runs = [(OPTIMUM, 0), ("cholesky", 0), ("cg", 20), ("rr-cg", 20), ("cg", 40), ("rr-cg", 40), ("rr-cg-ours", 0)]
        if size == "quick":  # 20 iterations would solve so small a system
            runs = [(OPTIMUM, 0), ("cholesky", 0), ("cg", 10), ("rr-cg", 10), ("rr-cg-ours", 0)]
        sets = ("bike",) if size == "quick" else ("bike", "pol")
        fixed = {"steps": 100, "rate": 0.1}
        return [
            {"set": name, "method": method, "size": k, "n": POINTS[name][size], **fixed}
            for name in sets
            for method, k in runs
        ]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        checks, far = [], []
        for name in self.figure_names():
            mine = where(rows, set=name)
            if not mine:
                continue
            gap = {
                (method, k): end_gap(mine, where(mine, method=method, size=k))
                for method, k in {(str(row["method"]), int(row["size"])) for row in mine}
            }
            exact, ours = gap["cholesky", 0], gap["rr-cg-ours", 0]
            if exact > NEAR:
                far.append(f"{SETS[name]} (gap of Cholesky {exact:+.2f})")
            for k in sorted({k for method, k in gap if method == "cg"}):
                words = f"gap {gap['rr-cg', k]:+.4f} against {gap['cg', k]:+.4f} of CG"
                better = gap["rr-cg", k] < gap["cg", k]
                checks.append(Check(f"{SETS[name]}: RR-CG ends below CG at {k} iterations", better, words))
            words = f"gap {ours:+.4f}, Cholesky {exact:+.4f}"
            checks.append(Check(f"{SETS[name]}: RRCG() ends where Cholesky does", ours < exact + 0.02, words))
        words = (
            "Gaps are exact objectives per point above the optimum, averaged over the last fifth of a run; one seed."
        )
        correction = ""
        if far:
            correction = (
                f"Correction: 100 steps are not enough on {' and '.join(far)}, for Cholesky neither; the agreement is "
                "with exact training after the same number of steps, not with the optimum."
            )
        return concluded(checks, words, correction)


SPEC = Fig5()
