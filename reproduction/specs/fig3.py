"""Fig. 3: the exact objective over lengthscale and noise, and the way that each method takes over it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from matplotlib.figure import Figure

from reproduction import models
from reproduction.drawing import axes, color, figure
from reproduction.methods import LABELS
from reproduction.spec import Cell, Check, Row, Setting, Size, Spec, Verdict, concluded
from reproduction.statistics import column, where
from rtgp._estimator.model import RegressionModel, new_model
from rtgp._report import Table
from rtgp._report.style import INK, MUTED, PAPER

POINTS: dict[Size, int] = {"quick": 400, "reduced": 1000, "full": 9600}
STEPS: dict[Size, int] = {"quick": 80, "reduced": 100, "full": 100}
FEATURES: dict[Size, tuple[int, int]] = {"quick": (140, 100), "reduced": (350, 250), "full": (700, 500)}
LENGTHSCALES, NOISES = (0.3, 4.0), (1e-3, 1.0)
GRID = 15
START = (0.6931, 0.6931)  # GPyTorch's


class Fig3(Spec):
    name = "fig3"
    title = "Fig. 3"
    claim = (
        "On PoleTele, CG with 20 iterations and RFF with 700 features stop away from the optimum over (lengthscale, "
        "noise); RR-CG and SS-RFF at the same expected cost come close to it, on a noisier way."
    )
    settings = (
        "Lengthscale and noise are learned, 20 (expected) iterations, 700 (expected) features (stated). Not stated: "
        "RBF kernel with one lengthscale, outputscale 1, mean 0, preconditioner of rank 5, 100 steps of Adam at rate "
        "0.1 that falls to zero over the last 40%, from lengthscale and noise 0.69.",
        "SS-RFF: 500 features at the base, steps of 100 (stated). With P(J) ∝ 1/J up to n/2 that is 721 features in "
        "expectation at n = 2,000 and about 1,900 at n = 9,600: the paper's 700 cannot be had there unless the ladder "
        "is cut off, which biases it. At the reduced size 350 and 250 features.",
    )
    departures = ("The authors' ladder of features is cut off before the exact kernel.",)

    def cells(self, size: Size = "full") -> list[Cell]:
        features, base = FEATURES[size]
        k = 10 if size == "quick" else 20  # 20 iterations would solve so small a system
        runs = {"landscape": 0, "cholesky": 0, "cg": k, "rr-cg": k, "rff": features, "ss-rff": base, "rr-cg-ours": 0}
        fixed = {"n": POINTS[size], "steps": STEPS[size]}
        return [{"method": method, "size": one, **fixed} for method, one in runs.items()]

    def run(self, cell: Cell, setting: Setting) -> list[Row]:
        data = models.load(setting, "pol", 10, int(cell["n"]))
        model = two_parameters(data)
        if cell["method"] == "landscape":
            return _landscape(model)
        method = setting.methods[str(cell["method"])](int(cell["size"]))
        _place(model, *START)
        path = models.train(model, method, "adam", int(cell["steps"]), 0.1, 0, 1, setting)
        rows: list[Row] = []
        for step, state in zip(path.steps, path.states, strict=True):
            model.load_state_dict(state)
            at = {"step": step, "lengthscale": model.covar_module.base_kernel.lengthscale.item()}
            rows.append({**at, "noise": model.likelihood.noise.item()})
        rows[-1] = {**rows[-1], "objective": models.exact_objective(model), "ended": path.ended or "all steps"}
        return rows

    def judge(self, rows: Sequence[Row]) -> Verdict:
        ends = {str(row["method"]): row for row in rows if "ended" in row}
        best = min(float(row["objective"]) for row in rows if "objective" in row)
        gap = {method: float(row["objective"]) - best for method, row in ends.items()}
        checks = []
        for unbiased, biased in (("rr-cg", "cg"), ("ss-rff", "rff")):
            passed = gap[unbiased] < gap[biased]
            words = f"exact objective {gap[unbiased]:+.4f} above the optimum, {LABELS[biased]} {gap[biased]:+.4f}"
            checks.append(Check(f"{LABELS[unbiased]} ends closer than {LABELS[biased]}", passed, words))
        words = f"{gap['rr-cg-ours']:+.4f}"
        checks.append(Check("RRCG() ends at the optimum", gap["rr-cg-ours"] < gap["cholesky"] + 0.005, words))
        return concluded(checks, "")

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        drawn = figure(9.0, 5.6)
        grid = where(rows, method="landscape")
        methods = [m for m in ("cholesky", "rr-cg", "cg", "rr-cg-ours", "ss-rff", "rff") if where(rows, method=m)]
        for k, method in enumerate(methods):
            path = where(rows, method=method)
            title = LABELS[method] + (f", {path[0]['size']}" if path[0]["size"] else "")
            on = axes(drawn, title, "lengthscale" if k > 2 else "", "noise" if k % 3 == 0 else "", (2, 3, k + 1))
            on.set(xscale="log", yscale="log", xlim=LENGTHSCALES, ylim=NOISES)
            on.grid(False)
            if grid:
                x, y = np.unique(column(grid, "lengthscale")), np.unique(column(grid, "noise"))
                z = np.array(column(grid, "objective")).reshape(len(x), len(y)).T
                gap = np.log10(z - z.min() + 0.003)
                shades = on.contourf(x, y, gap, levels=14, cmap="Greys", alpha=0.55)
                shades.set_rasterized(True)
                at = np.unravel_index(z.argmin(), z.shape)
                on.plot(x[at[1]], y[at[0]], "*", color=INK, markersize=13, markeredgecolor=PAPER, zorder=4)
            across, up = column(path, "lengthscale"), column(path, "noise")
            shown = color(method) if method != "cholesky" else MUTED
            on.plot(across, up, color=shown, linewidth=1.4, zorder=3)
            on.plot(across[-1], up[-1], "o", color=shown, markersize=6, markeredgecolor=PAPER, zorder=5)
            on.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
            on.xaxis.set_minor_formatter("")
        return {"fig3": drawn}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        best = min(float(row["objective"]) for row in rows if "objective" in row)
        lines = [
            [
                LABELS[str(row["method"])],
                f"{float(row['lengthscale']):.3f}",
                f"{float(row['noise']):.4f}",
                f"{float(row['objective']) - best:+.4f}",
            ]
            for row in rows
            if "ended" in row
        ]
        note = f"n = {int(rows[0]['n']):,}. Gap: exact objective per point above the best one met."
        return [Table(["method", "lengthscale", "noise", "gap"], lines, note)]


def two_parameters(data: models.Data) -> RegressionModel:
    """A model in which lengthscale and noise alone are learned."""
    model = new_model(data.x, data.y, ScaleKernel(RBFKernel()), None)
    with torch.no_grad():
        model.covar_module.outputscale = 1.0
        model.mean_module.constant.fill_(0.0)
    model.covar_module.raw_outputscale.requires_grad_(False)
    model.mean_module.constant.requires_grad_(False)
    model.train()
    return model


def _place(model: RegressionModel, lengthscale: float, noise: float) -> None:
    with torch.no_grad():
        model.covar_module.base_kernel.lengthscale = lengthscale
        model.likelihood.noise = noise


def _landscape(model: RegressionModel) -> list[Row]:
    rows: list[Row] = []
    for lengthscale in np.geomspace(*LENGTHSCALES, GRID).tolist():
        for noise in np.geomspace(*NOISES, GRID).tolist():
            _place(model, lengthscale, noise)
            objective = models.exact_objective(model)
            if not math.isfinite(objective):
                continue
            rows.append({"lengthscale": lengthscale, "noise": noise, "objective": objective})
    return rows


SPEC = Fig3()
