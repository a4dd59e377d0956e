"""Theorems 1 to 4: rates of the biases, variance and efficiency against the truncation distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from reproduction import decay, models, series
from reproduction.drawing import axes, error_bars, figure, legend
from reproduction.spec import Cell, Check, Row, Setting, Size, Spec, Value, Verdict, concluded
from reproduction.specs.fig2 import toy
from reproduction.statistics import column, mean_and_error, slope, where
from rtgp._estimator.model import RegressionModel
from rtgp._report import Table
from rtgp._report.style import MUTED
from rtgp._report.style import series as shade
from rtgp.truncation import ExponentialDecay

RATES = (
    0.06,
    0.09,
    0.125,
    0.18,
    0.25,
    0.35,
    0.5,
    0.7,
    1.0,
    1.4,
    2.0,
)  # of the truncation, over the measured decay of the terms
TARGETS = {"log_det": "log|K|", "quadratic": "yᵀK⁻¹y", "gradient": "gradient of yᵀK⁻¹y"}


class Theorems(Spec):
    name = "theorems"
    title = "Theorems 1 to 4"
    claim = (
        "CG's bias decays like C^(-2J) and RFF's like 1/J (Thm. 1, 2); the most efficient roulette has P(J) ∝ C^(-2J) "
        "(Thm. 3); the single sample of least variance has P(J) ∝ 1/J (Thm. 4)."
    )
    settings = (
        "A PoleTele subset at the optimum of the exact objective, and the data of Fig. 2 with lengthscale 0.35 and "
        "noise 1, whose effective dimension is small; no preconditioner, float64.",
        "Thm. 1 and 3: all n unit probes, so that the expectation over probes is exact; all truncations enumerated, so "
        "that no sampling error is left. ROE = ψ² / (E[cost] E[estimate²]). Thm. 2 and 4: means over draws of "
        "features.",
    )
    on_cpu = True

    def cells(self, size: Size = "full") -> list[Cell]:
        quick = size == "quick"
        n, draws = (150, 2000) if quick else (300, 4000)
        problems = ("toy", "pol")
        made: list[Cell] = [{"theorem": k, "problem": "pol", "n": n, "draws": 0} for k in (1, 3)]
        made += [{"theorem": k, "problem": p, "n": n, "draws": draws} for k in (2, 4) for p in problems]
        return made

    def run(self, cell: Cell, setting: Setting) -> list[Row]:
        n = int(cell["n"])
        if cell["problem"] == "toy":
            model = smooth_toy(n)
        else:
            data = models.load(setting, "pol", 10, n)
            model = models.fitted_exactly(data.x, data.y)
        steps = {1: _theorem_1, 2: _theorem_2, 3: _theorem_3, 4: _theorem_4}
        return steps[int(cell["theorem"])](model, cell, setting)

    def judge(self, rows: Sequence[Row]) -> Verdict:
        checks = [*_check_1(rows), *_check_2(rows), *_check_3(rows), *_check_4(rows)]
        correction = (
            "Corrections. Thm. 3 speaks of the values; the gradients that training uses come from solves, whose terms "
            "decay more slowly, so that the best truncation law for them is flatter. Thm. 4 leaves out that the last "
            "term of the ladder, against the exact kernel, does not follow 1/J: it needs far more probability."
        )
        some = where(rows, theorem=2, problem="pol")
        found = slope([math.log(v) for v in column(some, "J")], [math.log(v) for v in column(some, "log_det")])
        words = (
            f"The 1/J of Thm. 2 is a limit for J well above the effective dimension: on PoleTele the bias of log|K| "
            f"falls like J^{found:.2f} from J = {some[0]['J']} to {some[-1]['J']}."
        )
        return concluded(checks, words, correction)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        drawn = figure(8.6, 6.4)
        on = axes(drawn, "Thm. 1: bias of CG", "iterations J", "bias", (2, 2, 1))
        one = where(rows, theorem=1)
        for k, (term, name) in enumerate(list(TARGETS.items())[:2]):
            on.semilogy(column(one, "J"), column(one, term), color=shade(k), label=name, linewidth=1.8)
        legend(on)
        on = axes(drawn, "Thm. 2: bias of RFF", "features J", "bias of log|K|", (2, 2, 2))
        for k, (problem, marker) in enumerate((("toy", "o"), ("pol", "s"))):
            two = where(rows, theorem=2, problem=problem)
            if two:
                x, y, e = (column(two, name) for name in ("J", "log_det", "log_det_error"))
                label = {"toy": "toy, one input", "pol": "PoleTele"}[problem]
                error_bars(on, "rff", x, y, e, label, marker=marker, linestyle="none", color=shade(k))
                reference = [y[-1] * x[-1] / j for j in x]
                on.plot(x, reference, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), label="1/J" if k else None)
        on.set(xscale="log", yscale="log")
        on.set_xticks([30, 60, 100, 200, 300], ["30", "60", "100", "200", "300"])
        on.minorticks_off()
        legend(on)
        on = axes(
            drawn, "Thm. 3: efficiency of the roulette", "rate of P(J) / decay of log|K|", "ROE / best", (2, 2, 3)
        )
        for k, (target, name) in enumerate(TARGETS.items()):
            three = where(rows, theorem=3, target=target)
            if three:
                best = max(column(three, "roe"))
                y = [value / best for value in column(three, "roe")]
                on.plot(column(three, "relative_rate"), y, marker="osD"[k], color=shade(k), label=name)
        on.set_xscale("log")
        on.set_xticks([0.0625, 0.125, 0.25, 0.5, 1, 2], ["1/16", "1/8", "1/4", "1/2", "1", "2"])
        on.minorticks_off()
        on.set_ylim(-0.05, 1.38)
        legend(on, loc="upper left", ncols=2)
        on = axes(drawn, "Thm. 4: terms of SS-RFF, log|K|", "features J", "root mean square of Δ", (2, 2, 4))
        for k, (problem, marker) in enumerate((("toy", "o"), ("pol", "s"))):
            four = where(rows, theorem=4, problem=problem, kind="term")
            if four:
                label = {"toy": "toy, one input", "pol": "PoleTele"}[problem]
                x, y = column(four, "J"), column(four, "log_det")
                on.plot(x[:-1], y[:-1], marker + "-", color=shade(k), label=label, markersize=4, linewidth=1.0)
                on.plot(x[-1], y[-1], "*", color=shade(k), markersize=12, label="last, exact" if k else None)
                on.plot(x[:-1], [y[0] * x[0] / j for j in x[:-1]], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
        on.set(xscale="log", yscale="log")
        on.set_xticks([30, 60, 100, 200, 300], ["30", "60", "100", "200", "300"])
        on.minorticks_off()
        legend(on)
        return {"theorems": drawn}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        lines = []
        for target, name in TARGETS.items():
            some = where(rows, theorem=3, target=target)
            if some:
                best = max(some, key=lambda row: float(row["roe"]))
                cells = [
                    f"{float(best['rate']):.3f}",
                    f"{float(best['relative_rate']):g}",
                    f"{float(best['cost']):.1f}",
                ]
                lines.append([name, *cells])
        head = ["Thm. 3: what is estimated", "best rate of P(J)", "over the decay of log|K|", "E[cost]"]
        return [Table(head, lines)] if lines else []


def smooth_toy(n: int) -> RegressionModel:
    """The data of Fig. 2 with lengthscale and noise so large that few features tell almost all of the kernel."""
    model, _ = toy(n)
    with torch.no_grad():
        model.covar_module.base_kernel.lengthscale = 0.35
        model.likelihood.noise = 1.0
    return model


def _theorem_1(model: RegressionModel, cell: Cell, setting: Setting) -> list[Row]:
    matrix, y = series.covariance(model)
    terms = decay.mean_increments(matrix, y)
    exact = series.exact_terms(matrix, y)
    log_det, quadratic = terms.log_det[:, 0].cumsum(0) - exact[0], exact[1] - terms.quadratic.cumsum(0)
    spectrum = torch.linalg.eigvalsh(matrix)
    root = math.sqrt(float(spectrum[-1] / spectrum[0]))
    rate = 2 * math.log((root + 1) / (root - 1))  # 2 log C
    return [
        {"J": j + 1, "log_det": float(log_det[j]), "quadratic": float(quadratic[j]), "bound_rate": rate}
        for j in range(len(quadratic))
        if log_det[j] > 1e-10 * abs(exact[0]) and quadratic[j] > 1e-10 * exact[1]
    ]


def _theorem_2(model: RegressionModel, cell: Cell, setting: Setting) -> list[Row]:
    n = int(cell["n"])
    exact = series.exact_terms(*series.covariance(model))
    rows: list[Row] = []
    for part in (0.1, 0.15, 0.25, 0.4, 0.6, 0.95):
        size = max(2, int(part * n) // 2 * 2)
        draws = 3 * int(cell["draws"]) // 4
        log_det, quadratic, _ = models.sampled(model, setting.methods["rff"](size), draws, seed=size)
        one, two = mean_and_error(exact[0] - log_det), mean_and_error(quadratic - exact[1])
        row = {"J": size, "log_det": one[0], "log_det_error": one[1]}
        rows.append({**row, "quadratic": two[0], "quadratic_error": two[1]})
    return rows


def _theorem_3(model: RegressionModel, cell: Cell, setting: Setting) -> list[Row]:
    matrix, y = series.covariance(model)
    terms = decay.mean_increments(matrix, y)
    length = len(terms.quadratic)
    measured = {
        "log_det": decay.decay_rate(terms.log_det[:, 0].tolist()),
        "quadratic": decay.decay_rate(terms.quadratic.tolist()),
    }
    unit = measured["log_det"]
    derivative = _lengthscale_derivative(model)
    rows: list[Row] = []
    for relative in RATES:
        law = ExponentialDecay(relative * unit, 1, length)
        found = {
            "log_det": decay.value_efficiency(law, terms.log_det[:, 0]),
            "quadratic": decay.value_efficiency(law, terms.quadratic),
            "gradient": decay.gradient_efficiency(law, matrix, derivative, y),
        }
        for target, one in found.items():
            row: dict[str, Value] = {
                "target": target,
                "relative_rate": relative,
                "rate": relative * unit,
                "mean": one.mean,
            }
            row |= {"variance": one.variance, "cost": one.cost, "roe": one.relative_efficiency}
            rows.append({**row, "decay": measured.get(target, math.nan)})
    return rows


def _theorem_4(model: RegressionModel, cell: Cell, setting: Setting) -> list[Row]:
    n = int(cell["n"])
    step = max(2, n // 50 * 2)
    found = decay.rung_differences(model, step, step, int(cell["draws"]) // 4, seed=0)
    ladder = found.ladder
    places = (*ladder.rungs[1:], ladder.exact_place)
    rms = {"log_det": found.log_det.square().mean(0).sqrt(), "quadratic": found.quadratic.square().mean(0).sqrt()}
    rows: list[Row] = [
        {"kind": "term", "J": place, "log_det": float(rms["log_det"][k]), "quadratic": float(rms["quadratic"][k])}
        for k, place in enumerate(places)
    ]
    paper = torch.tensor(ladder.paper(), dtype=torch.float64)
    for term, differences in (("log_det", found.log_det), ("quadratic", found.quadratic)):
        half = len(differences) // 2  # the best law is learned on one half of the draws and judged on the other
        best = differences[:half].square().mean(0).sqrt()
        best = best / best.sum()
        one, two = (math.sqrt(decay.single_sample_variance(differences[half:], p)) for p in (paper, best))
        row: dict[str, Value] = {"kind": "variance", "target": term, "paper": one, "best": two}
        rows.append({**row, "paper_last": float(paper[-1]), "best_last": float(best[-1])})
    return rows


def _lengthscale_derivative(model: RegressionModel) -> torch.Tensor:
    """dK / d log lengthscale, all lengthscales together (n, n): K is a function of x / lengthscale."""
    x = model.train_inputs[0]

    def kernel(log_scale: torch.Tensor) -> torch.Tensor:
        z = x / log_scale.exp() / model.covar_module.base_kernel.lengthscale.detach()
        square = (z[:, None] - z[None]).square().sum(-1)
        value: torch.Tensor = model.covar_module.outputscale.detach() * torch.exp(-0.5 * square)
        return value

    at = torch.zeros((), dtype=x.dtype, device=x.device)
    found: torch.Tensor = torch.func.jvp(kernel, (at,), (torch.ones_like(at),))[1]
    return found


def _check_1(rows: Sequence[Row]) -> list[Check]:
    checks = []
    some = where(rows, theorem=1)
    for term in ("log_det", "quadratic"):
        values = column(some, term)
        rate = -slope(column(some, "J"), [math.log(value) for value in values])
        bound = float(some[0]["bound_rate"])
        words = f"bias of {TARGETS[term]} decays like exp(-{rate:.3f} J), 2 log C = {bound:.3f}"
        checks.append(Check(f"Thm. 1, {TARGETS[term]}: geometric decay, no slower than C^(-2J)", rate >= bound, words))
    return checks


def _check_2(rows: Sequence[Row]) -> list[Check]:
    checks = []
    some = where(rows, theorem=2, problem="toy")
    for term in ("log_det", "quadratic"):
        late = [row for row in some if int(row["J"]) >= 0.2 * int(row["n"])]
        biases, errors = column(late, term), column(late, f"{term}_error")
        weights = [bias / error for bias, error in zip(biases, errors, strict=True)]  # 1 / standard error of log(bias)
        found = slope([math.log(v) for v in column(late, "J")], [math.log(v) for v in biases], weights)
        words = f"bias of {TARGETS[term]} falls like J^{found:.2f} on the toy problem"
        checks.append(Check(f"Thm. 2, {TARGETS[term]}: the bias falls like 1/J", -1.4 < found < -0.65, words))
    return checks


def _check_3(rows: Sequence[Row]) -> list[Check]:
    best = {}
    for target in TARGETS:
        some = where(rows, theorem=3, target=target)
        best[target] = float(max(some, key=lambda row: float(row["roe"]))["relative_rate"])
    words = f"best rate {best['log_det']:g} times the decay of its terms"
    return [
        Check("Thm. 3, log|K|: ROE is best where P(J) decays like the terms", 0.5 <= best["log_det"] <= 2.0, words),
        Check(
            "Thm. 3, gradients: the best law is flatter than for the values",
            best["gradient"] < best["log_det"],
            f"best rate {best['gradient']:g} times the decay of the terms of log|K|",
        ),
    ]


def _check_4(rows: Sequence[Row]) -> list[Check]:
    checks = []
    some = where(rows, theorem=4, problem="toy", kind="term")[:-1]
    found = slope([math.log(v) for v in column(some, "J")], [math.log(v) for v in column(some, "log_det")])
    words = f"root mean square falls like J^{found:.2f} on the toy problem"
    checks.append(Check("Thm. 4: the terms before the last fall like 1/J", -1.6 < found < -0.7, words))
    for problem, name in (("toy", "toy"), ("pol", "PoleTele")):
        for row in where(rows, theorem=4, problem=problem, target="log_det", kind="variance"):
            ratio = float(row["paper"]) / float(row["best"])
            words = f"standard deviation {float(row['paper']):.3g} against {float(row['best']):.3g} with P ∝ rms Δ; "
            words += f"P(last) {float(row['paper_last']):.3f} against {float(row['best_last']):.3f}"
            checks.append(Check(f"Thm. 4, {name}: 1/J is not the law of least variance", ratio > 1.05, words))
    return checks


SPEC = Theorems()
