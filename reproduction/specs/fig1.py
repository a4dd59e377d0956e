"""Fig. 1: the two terms of the objective by CG, RR-CG, RFF and SS-RFF against the (expected) truncation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from reproduction import models, series
from reproduction.drawing import axes, error_bars, exact_line, figure, legend
from reproduction.methods import LABELS, truncation
from reproduction.spec import Cell, Check, Row, Setting, Size, Spec, Value, Verdict, concluded
from reproduction.statistics import column, mean_and_error, values, where
from rtgp._report import Table

TERMS = {"log_det": "log|K|", "quadratic": "yᵀK⁻¹y"}
ITERATIONS = (5, 10, 20, 30, 40)
LIMIT = 4.5  # standard errors: 20 comparisons by chance alone exceed it with probability 1.4e-4


class Fig1(Spec):
    name = "fig1"
    title = "Fig. 1"
    claim = (
        "CG overestimates log|K| and underestimates yᵀK⁻¹y, RFF does the opposite; RR-CG and SS-RFF recover the exact "
        "values of both."
    )
    settings = (
        "A subset of PoleTele, 10,000 samples (stated); its size and hyperparameters are not stated: here 500 points, "
        "one lengthscale per input, hyperparameters at the optimum of the exact objective, no preconditioner.",
        "RR-CG: exponential truncations of Eq. 14, rate 0.05 (1/E[J] where E[J] < 20). Each sample has a probe vector "
        "and a truncation of its own.",
        "SS-RFF: P(J) proportional to 1/J on a ladder of features that ends with the exact kernel at n/2.",
        "Samples: 10,000 for CG, RR-CG and SS-RFF; 2,000 for RFF, 5,000 for SSRFF() and 250 for RRCG(), whose errors "
        "are small beside what is to be seen.",
        "Agreement: a mean within 4.5 standard errors of the exact value.",
    )
    departures = (
        "The reported log-determinant is plain Lanczos quadrature, which is biased; SS-RFF with a step above 1 "
        "subtracts the wrong rung and does not telescope, and never uses the exact last term.",
    )
    on_cpu = True

    def cells(self, size: Size = "full") -> list[Cell]:
        quick = size == "quick"
        n, samples = (200, 2000) if quick else (500, 10_000)
        features, bases = ((20, 40, 80), (10, 30)) if quick else ((50, 100, 150, 200), (10, 40, 120))
        ours = {"rr-cg-ours": samples // 40, "ss-rff-ours": samples // 2}
        made: list[Cell] = [{"method": "rr-cg", "size": 0, "n": n, "samples": samples}]
        made += [{"method": "rff", "size": m, "n": n, "samples": min(samples, 2000)} for m in features]
        made += [{"method": "ss-rff", "size": m, "n": n, "samples": samples} for m in bases]
        made += [{"method": method, "size": 0, "n": n, "samples": some} for method, some in ours.items()]
        return made

    def run(self, cell: Cell, setting: Setting) -> list[Row]:
        data = models.load(setting, "pol", 10, int(cell["n"]))
        model = models.fitted_exactly(data.x, data.y)
        matrix, y = series.covariance(model)
        exact = series.exact_terms(matrix, y)
        if cell["method"] == "rr-cg":
            return self._krylov(cell, setting, matrix, y, exact)
        method = setting.methods[str(cell["method"])](int(cell["size"]))
        log_det, quadratic, spent = models.sampled(model, method, int(cell["samples"]), seed=1)
        row: dict[str, Value] = {"estimator": str(cell["method"]), "expected": float(spent.mean())}
        return [{**row, **_summary("log_det", log_det, exact[0]), **_summary("quadratic", quadratic, exact[1])}]

    def _krylov(
        self, cell: Cell, setting: Setting, matrix: torch.Tensor, y: torch.Tensor, exact: tuple[float, float]
    ) -> list[Row]:
        """One run of CG for every probe, to the end; all truncations from it."""
        count, generator = int(cell["samples"]), torch.Generator().manual_seed(0)
        terms = series.many_increments(matrix, y, count, generator)
        length = len(terms.quadratic)
        whole = terms.log_det.sum(0)
        rows: list[Row] = []
        for method in ("cg", "rr-cg"):
            for size in ITERATIONS:
                made = setting.methods[method](size)
                w = series.weights(made, length, count, generator)
                log_det, quadratic = (w * terms.log_det).sum(0), (w * terms.quadratic[:, None]).sum(0)
                expected = float(size) if method == "cg" else truncation(size).mean
                # The probe's own error is the same at every truncation: without it the bias shows more sharply.
                bias = dict(zip(("log_det_bias", "log_det_bias_error"), mean_and_error(log_det - whole), strict=True))
                row: dict[str, Value] = {
                    "estimator": method,
                    "expected": expected,
                    **_summary("log_det", log_det, exact[0]),
                }
                rows.append({**row, **bias, **_summary("quadratic", quadratic, exact[1])})
        return rows

    def judge(self, rows: Sequence[Row]) -> Verdict:
        checks = [
            self._signs(rows, "cg", 1, -1),
            self._signs(rows, "rff", -1, 1),
            self._recovers(rows, "rr-cg", "cg"),
            self._recovers(rows, "ss-rff", "rff"),
            self._recovers(rows, "rr-cg-ours"),
            self._recovers(rows, "ss-rff-ours"),
        ]
        least, most = (f(row["log_det_error"] for row in where(rows, estimator="rr-cg")) for f in (min, max))
        words = (
            f"The standard error of RR-CG's mean log|K| falls from {most:.2g} to {least:.2g} as E[J] grows: the price "
            "of no bias is variance, as the paper says."
        )
        return concluded(checks, words)

    def _signs(self, rows: Sequence[Row], method: str, log_det: int, quadratic: int) -> Check:
        """The bias has its known sign at every truncation, and stands out of the noise at the smallest."""
        mine = where(rows, estimator=method)
        right = [
            sign * float(row[f"{term}_bias"]) > -LIMIT * float(row[f"{term}_bias_error"]) - 1e-9 * abs(float(row[term]))
            for row in mine
            for term, sign in (("log_det", log_det), ("quadratic", quadratic))
        ]
        first = mine[0]
        clear = log_det * float(first["log_det_bias"]) > LIMIT * float(first["log_det_bias_error"])
        clear &= quadratic * float(first["quadratic_bias"]) > LIMIT * float(first["quadratic_bias_error"])
        words = f"log|K| {float(first['log_det_bias']):+.3g}, yᵀK⁻¹y {float(first['quadratic_bias']):+.3g} at "
        return Check(f"signs of the bias of {LABELS[method]}", all(right) and clear, words + f"{first['expected']:.0f}")

    def _recovers(self, rows: Sequence[Row], method: str, biased: str = "") -> Check:
        mine = where(rows, estimator=method)
        scores = {
            term: [abs(float(row[f"{term}_bias"])) / max(float(row[f"{term}_bias_error"]), 1e-300) for row in mine]
            for term in TERMS
        }
        worst = max(max(score) for score in scores.values())
        words = f"at most {worst:.1f} standard errors from the exact values"
        # A test that could not have seen the biased method's error would show nothing.
        power = True
        if biased:
            other = where(rows, estimator=biased)[0]
            seen = abs(float(other["log_det_bias"])) / float(mine[0]["log_det_bias_error"])
            power = seen > 2 * LIMIT
            words += f", where the bias of {LABELS[biased]} would be {seen:.0f} of them"
        return Check(f"{LABELS[method]} recovers both values", worst < LIMIT and power, words)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        drawn = figure(8.4, 5.6)
        families = (("cg", "rr-cg", "rr-cg-ours"), ("rff", "ss-rff", "ss-rff-ours"))
        for down, (term, name) in enumerate(TERMS.items()):
            for across, family in enumerate(families):
                what = ("(expected) iterations", "(expected) features")[across]
                on = axes(drawn, x=what if down else "", y=name, position=(2, 2, 1 + 2 * down + across))
                mine = [row for row in rows if row["estimator"] in family]
                if mine:
                    exact_line(on, float(mine[0][f"{term}_exact"]))
                for method in family:
                    some = where(mine, estimator=method)
                    if some:
                        x, y = column(some, "expected"), column(some, term)
                        error_bars(on, method, x, y, column(some, f"{term}_error"))
                if down == 0:
                    legend(on)
        return {"fig1": drawn}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        head = ["estimator", "(expected) size", "log|K|", "exact", "yᵀK⁻¹y", "exact"]
        lines = []
        for method in values(rows, "estimator"):
            for row in where(rows, estimator=method):
                cells = [LABELS[str(method)], f"{float(row['expected']):.0f}"]
                for term in TERMS:
                    cells += [f"{float(row[term]):.2f} ± {float(row[f'{term}_error']):.2f}"]
                    cells += [f"{float(row[f'{term}_exact']):.2f}"]
                lines.append(cells)
        return [Table(head, lines)]


def _summary(term: str, found: torch.Tensor, exact: float) -> dict[str, float]:
    mean, error = mean_and_error(found)
    if error < 1e-12 * abs(mean):  # not random at all
        error = 0.0
    made = {term: mean, f"{term}_error": error, f"{term}_exact": exact}
    return {
        **made,
        f"{term}_bias": mean - exact,
        f"{term}_bias_error": error,
        f"{term}_sd": error * math.sqrt(len(found)),
    }


SPEC = Fig1()
