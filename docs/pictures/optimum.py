"""The picture at the top of README: what plain CG sees of the likelihood, what RR-CG sees, and where each ends up.

    python docs/pictures/optimum.py measure    # some minutes: writes optimum.csv
    python docs/pictures/optimum.py            # draws optimum-light.svg and optimum-dark.svg from it

Elevation of US airports, longitude and latitude as inputs, one lengthscale for both. Outputscale, noise and mean are
held at their exact optimum, so that there is one number to learn and the whole objective fits into a picture.

CG(20) was tried first. It sees a shifted curve too, with its top near 3.9 degrees, but its gradient is nearly right at
the optimum: four of five trainings ended between 2.41 and 2.76 degrees and one at 4.91. So 10 iterations were taken,
which show the effect. `rtgp diagnose` tells how many do harm on given data.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

import gpytorch
import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from themes import THEMES, plain_axes

import rtgp

HERE = Path(__file__).parent
POINTS = 1000
CG = "CG(10)"
METHODS = {"exact": rtgp.Cholesky(), CG: rtgp.CG(10), "RR-CG": rtgp.RRCG()}
DRAWS = 20  # estimates at each lengthscale, of the methods that are noisy
SEEDS = 5  # trainings of each of these
GRID = 25
START = 2.0  # times the optimum: where every training begins
SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "optimum"}
NO_METADATA = {"Date": None, "Creator": None}
TICKS = (0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16)


class Model(gpytorch.models.ExactGP):
    """Constant mean, one kernel with one lengthscale."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))
        self.to(x)

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    @property
    def lengthscale(self) -> float:
        return float(self.covar_module.base_kernel.lengthscale.detach())

    def set_lengthscale(self, value: float) -> None:
        self.covar_module.base_kernel.lengthscale = value


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Degrees, and elevation in standard deviations."""
    airports = rtgp.datasets.load("us-airports").subset(POINTS, seed=0)
    x, y = torch.tensor(airports.X), torch.tensor(airports.y)
    return x - x.mean(0), (y - y.mean()) / y.std()


def at_exact_optimum(x: torch.Tensor, y: torch.Tensor) -> Model:
    """All hyperparameters by Cholesky; only the lengthscale may move from here on."""
    model = Model(x, y)
    rtgp.fit(model, model.likelihood, x, y, method="cholesky")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lengthscale" in name)
    return model


def measure() -> list[dict[str, object]]:
    """Rows of the curves (mean of the estimates and its standard error) and of the ends of training."""
    x, y = data()
    model = at_exact_optimum(x, y)
    best = model.lengthscale
    rows: list[dict[str, object]] = []
    for name, method in METHODS.items():
        for lengthscale in (best * torch.logspace(-0.35, 0.6, GRID, dtype=x.dtype)).tolist():
            model.set_lengthscale(lengthscale)
            values = estimates(model, x, y, method, 1 if name == "exact" else DRAWS)
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
            rows.append(row(name, "curve", 0, lengthscale, statistics.fmean(values), error))
        for seed in range(1 if name == "exact" else SEEDS):
            model.set_lengthscale(START * best)
            rtgp.fit(model, model.likelihood, x, y, method=method, seed=seed, subset_start=False)
            exact = estimates(model, x, y, rtgp.Cholesky(), 1)[0]
            rows.append(row(name, "end", seed, model.lengthscale, exact, 0.0))
    return rows


def estimates(model: Model, x: torch.Tensor, y: torch.Tensor, method: object, count: int) -> list[float]:
    """Of the log marginal likelihood per point, at the model's hyperparameters."""
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model.train(), method, torch.Generator().manual_seed(0))
    with torch.no_grad():
        return [float(mll(model(x), y)) for _ in range(count)]


def row(method: str, kind: str, seed: int, lengthscale: float, value: float, error: float) -> dict[str, object]:
    numbers = {"lengthscale": lengthscale, "log_likelihood_per_point": value, "standard_error": error}
    return {"method": method, "kind": kind, "seed": seed, **{key: f"{one:.6g}" for key, one in numbers.items()}}


def read() -> list[dict[str, str]]:
    with (HERE / "optimum.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def values(rows: list[dict[str, str]], method: str, kind: str, column: str) -> list[float]:
    return [float(one[column]) for one in rows if (one["method"], one["kind"]) == (method, kind)]


def draw(rows: list[dict[str, str]], theme: str) -> Figure:
    """The objective against the lengthscale, as each method sees it, and where its training ends."""
    color = THEMES[theme]
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    figure.patch.set_alpha(0.0)
    axes = plain_axes(figure.add_subplot(), theme)
    words = {"exact": "the exact objective", CG: f"what {CG} sees of it", "RR-CG": "what RR-CG sees, on average"}
    for name in METHODS:
        x, y = (values(rows, name, "curve", column) for column in ("lengthscale", "log_likelihood_per_point"))
        style = {"linestyle": "none", "marker": "o", "markersize": 5} if name == "RR-CG" else {"linewidth": 2.2}
        axes.plot(x, y, color=color[name.partition("(")[0]], label=words[name], **style)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top + 0.25 * (top - bottom))  # room for the words at the top
    _mark_ends(axes, rows, theme)
    axes.set_xscale("log")
    ticks = [one for one in TICKS if axes.get_xlim()[0] < one < axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{one:g}°" for one in ticks])
    axes.minorticks_off()
    axes.set_xlabel("lengthscale", color=color["ink"])
    axes.set_ylabel("log marginal likelihood per point", color=color["ink"])
    axes.legend(frameon=False, labelcolor=color["ink"], fontsize=9.5, loc="lower left")
    return figure


def _mark_ends(axes: Axes, rows: list[dict[str, str]], theme: str) -> None:
    """A line where the training of each method ends, on average over its seeds."""
    for name, label, align, height in (
        ("exact", "Cholesky", "right", 0.97),
        ("RR-CG", "RR-CG", "right", 0.90),
        (CG, CG, "left", 0.97),
    ):
        color, end = THEMES[theme][name.partition("(")[0]], statistics.fmean(values(rows, name, "end", "lengthscale"))
        axes.axvline(end, color=color, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            f"{label} ends at {end:.2f}°", (end, height), xycoords=("data", "axes fraction"), color=color, ha=align,
            va="top", xytext=(4 if align == "left" else -4, 0), textcoords="offset points", fontsize=9.5,
        )  # fmt: skip


def main(command: str) -> None:
    if command == "measure":
        rows = measure()
        with (HERE / "optimum.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    for theme in THEMES:
        with matplotlib.rc_context(SETTINGS):
            draw(read(), theme).savefig(HERE / f"optimum-{theme}.svg", metadata=NO_METADATA)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "draw")
