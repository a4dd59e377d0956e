"""Bayesian optimisation: BoTorch proposes where to look next, rtgp.fit learns the hyperparameters by RR-CG.

Branin's function has three equal valleys, and is measured with noise. The first 20 places are random; then each round
looks at four more. Look at the last column: the best value comes near to the smallest there is, 0.398, in a few rounds.
In the picture the later places lie in the valleys, or where nobody has looked.

    python examples/optimisation.py
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from matplotlib.figure import Figure
from torch import Tensor

import rtgp

FIRST, ROUNDS, EACH, NOISE = 20, 6, 4, 0.3


def branin(x: Tensor) -> Tensor:
    """At x (n, 2) in the unit square, (n,)."""
    a, b = 15.0 * x[:, 0] - 5.0, 15.0 * x[:, 1]
    valley = b - 5.1 / (4 * np.pi**2) * a**2 + 5.0 / np.pi * a - 6.0
    return valley**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * torch.cos(a) + 10.0


def picture(x: Tensor) -> Figure:
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    side = torch.linspace(0.0, 1.0, 120, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    values = branin(grid).reshape(120, 120).T
    axes.contourf(side, side, torch.log(values), levels=14, cmap="Greys")
    axes.plot(*x[:FIRST].T, "o", color="#1f6fb4", markersize=3.5, label="at random")
    axes.plot(*x[FIRST:].T, "o", color="#c4561a", markersize=5, label="proposed")
    axes.legend(loc="upper right", fontsize=9)
    return figure


def main() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # BoTorch says so when it begins a search again
    torch.manual_seed(0)  # BoTorch draws its samples and starts from torch's generator
    generator = torch.Generator().manual_seed(0)
    noise = {"generator": generator, "dtype": torch.float64}
    x = torch.rand(FIRST, 2, **noise)
    y = branin(x) + NOISE * torch.randn(FIRST, **noise)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    print(f"{FIRST} places at random; best so far {branin(x).min():.3f}")
    for number in range(ROUNDS):
        model = SingleTaskGP(x, -y[:, None], outcome_transform=Standardize(1))
        result = rtgp.fit(model, model.likelihood, x, model.train_targets, method=rtgp.RRCG(), seed=number)
        acquisition = qLogNoisyExpectedImprovement(model.eval(), x)
        places, _ = optimize_acqf(acquisition, bounds, q=EACH, num_restarts=4, raw_samples=64)
        x = torch.cat([x, places])
        y = torch.cat([y, branin(places) + NOISE * torch.randn(EACH, **noise)])
        print(f"round {number + 1}: {result.steps} steps, {result.status.value}; best so far {branin(x).min():.3f}")
    if len(sys.argv) > 1:
        picture(x).savefig(sys.argv[1], dpi=80)


if __name__ == "__main__":
    main()
