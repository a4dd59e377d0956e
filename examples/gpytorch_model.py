"""A GPyTorch model of your own, trained twice: in a loop of your own, and by rtgp.fit.

Look at the last two columns. The first is an estimate by `rtgp.MarginalLogLikelihood`, with a standard error; the
second is GPyTorch's own exact value, by Cholesky. They agree within a few of these errors. Then look at the rows:
both trainings end where the one by Cholesky does, though they have never seen an exact value. Their gradients are
noisy, but not biased.

    python examples/gpytorch_model.py
"""

from __future__ import annotations

import sys

import gpytorch
import torch
from matplotlib.figure import Figure
from torch import Tensor

import rtgp

STEPS = 250
# Where both begin, for standardised data. With long lengthscales the likelihood has another peak.
LENGTHSCALE, NOISE = 0.3, 0.1


class Model(gpytorch.models.ExactGP):
    """A linear trend, and a smooth function around it."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.LinearMean(x.shape[1])
        matern = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=x.shape[1])
        self.covar_module = gpytorch.kernels.ScaleKernel(matern)
        matern.lengthscale, self.likelihood.noise = LENGTHSCALE, NOISE

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def new_model(x: Tensor, y: Tensor) -> Model:
    torch.manual_seed(0)  # GPyTorch draws the first weights of a linear mean
    return Model(x, y).double()


def exact(model: Model, x: Tensor, y: Tensor) -> float:
    """GPyTorch's own value, by Cholesky."""
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model).train()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        return float(mll(model(x), y))


def estimated(model: Model, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The value by RR-CG, and its standard error."""
    generator = torch.Generator().manual_seed(1)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method=rtgp.RRCG(), generator=generator).train()
    with torch.no_grad():
        value = float(mll(model(x), y))
    return value, mll.last.value_error / len(y)


def train_in_own_loop(model: Model, x: Tensor, y: Tensor) -> list[float]:
    """Adam, with steps that fall to zero: that averages the noise out. Returns the estimates on the way."""
    generator = torch.Generator().manual_seed(0)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method=rtgp.RRCG(), generator=generator).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    estimates = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        estimates.append(-loss.item())
        optimizer.step()
        schedule.step()
    return estimates


def picture(estimates: list[float], optimum: float) -> Figure:
    """What the loop has seen, step by step."""
    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(estimates, ".", color="#1f6fb4", markersize=4, label="estimates by RR-CG, own loop")
    axes.axhline(optimum, color="#c4561a", linewidth=1.2, label="exact optimum, by Cholesky")
    axes.set_xlabel("step")
    axes.set_ylabel("log likelihood per point")
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    return figure


def main() -> None:
    data = rtgp.datasets.load("us-airports").subset(700, seed=0).split(seed=0).train
    x, y = torch.tensor(data.X), torch.tensor(data.y)
    models = {name: new_model(x, y) for name in ("start", "own loop", "rtgp.fit", "exact")}
    estimates = train_in_own_loop(models["own loop"], x, y)
    model = models["rtgp.fit"]
    result = rtgp.fit(model, model.likelihood, x, y, method=rtgp.RRCG(), seed=0)
    rtgp.fit(models["exact"], models["exact"].likelihood, x, y, method=rtgp.Cholesky())

    print(f"{len(y)} points; own loop: {STEPS} steps; rtgp.fit: {result.steps} steps, {result.status.value}")
    print(f"{'':10} {'lengthscales':>14} {'log likelihood per point':>27} {'exact':>9}")
    for name, model in models.items():
        scales = " ".join(f"{value:.3f}" for value in model.covar_module.base_kernel.lengthscale[0].tolist())
        value, error = estimated(model, x, y)
        print(f"{name:10} {scales:>14} {value:17.4f} +- {error:.4f} {exact(model, x, y):9.4f}")
    if len(sys.argv) > 1:
        picture(estimates, exact(models["exact"], x, y)).savefig(sys.argv[1], dpi=80)


if __name__ == "__main__":
    main()
