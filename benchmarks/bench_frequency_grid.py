"""A grid of frequencies in two dimensions against RR-CG: one training step (value and gradient) on precipitation.

The inputs are longitude and latitude (10 years at each of 10,127 places), RBF kernel with two lengthscales, at
hyperparameters fitted by Cholesky on 1500 points; float64, one thread. Errors are those of the gradient with respect
to the logarithms of all hyperparameters, in nats: against Cholesky where n allows it, else against a grid of twice as
many features. RR-CG's error is the standard deviation of its draws; at n = 10^5 it is not run: its time there is
extrapolated from the largest n by n^2, which leaves out that iterations grow.

    RTGP_DATA=... python benchmarks/bench_frequency_grid.py
"""

from __future__ import annotations

import time
import warnings

import record
import torch
from bench_time_to_optimum import Model

import rtgp
from rtgp.training._problem import Problem

FIT, EXACT, CROSS, FULL = 1500, 4000, 12_000, 101_270
FEATURES = (500, 1000, 2000)
DRAWS = 6


def step(model: Model, x: torch.Tensor, y: torch.Tensor, method: object, draws: int = 1) -> dict[str, object]:
    """Gradients (draws, p) in nats, seconds of one, and the loss in nats."""
    model.set_train_data(x, y, strict=False)
    problem = Problem(model.train(), model.likelihood.train(), x, y, method, 0)
    gradients, losses, began = [], [], time.perf_counter()
    for _ in range(draws):
        found = problem.evaluate()
        gradients.append(found.gradient * len(y))
        losses.append(found.loss * len(y))
    seconds = (time.perf_counter() - began) / draws
    return {"gradients": torch.stack(gradients), "seconds": seconds, "losses": losses, "stats": found.stats}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = rtgp.datasets.load("precipitation").standardised()
    order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(0))
    X = torch.tensor(data.X[:, 1:], dtype=torch.float64)[order]
    y = torch.tensor(data.y, dtype=torch.float64)[order]
    model = Model(X[:FIT], y[:FIT]).double()
    rtgp.fit(model, model.likelihood, X[:FIT], y[:FIT], method="cholesky", steps=40)
    print({name: float(p.detach().reshape(-1)[0]) for name, p in model.named_parameters()})
    print("lengthscales", model.covar_module.base_kernel.lengthscale.tolist(), "noise", float(model.likelihood.noise))
    rows: list[dict[str, object]] = []

    def add(n: int, label: str, found: dict, reference: dict | None, against: str) -> None:
        gradients = found["gradients"]
        error = "" if reference is None else f"{float((gradients.mean(0) - reference['gradients'][0]).norm()):.3g}"
        if len(gradients) > 1:
            error = f"{float(gradients.var(0).sum()) ** 0.5:.3g}"
        loss_error = "" if reference is None else f"{found['losses'][0] - reference['losses'][0]:.3g}"
        rows.append(
            {
                "n": n,
                "method": label,
                "gradient_norm": f"{float(gradients.mean(0).norm()):.4g}",
                "gradient_error": error,
                "loss_error": loss_error,
                "against": against,
                "iterations": found["stats"].iterations,
                "seconds": f"{found['seconds']:.3g}",
            }
        )
        print(rows[-1], flush=True)

    exact = step(model, X[:EXACT], y[:EXACT], rtgp.Cholesky())
    add(EXACT, "Cholesky()", exact, exact, "itself")
    for count in FEATURES:
        add(
            EXACT,
            f"RFF({count}, 'grid')",
            step(model, X[:EXACT], y[:EXACT], rtgp.RFF(count, "grid")),
            exact,
            "Cholesky",
        )
    add(EXACT, "RFF(2000)", step(model, X[:EXACT], y[:EXACT], rtgp.RFF(2000)), exact, "Cholesky")
    add(EXACT, "RRCG()", step(model, X[:EXACT], y[:EXACT], rtgp.RRCG(), DRAWS), exact, "sd of draws")
    finest = None
    for count in reversed(FEATURES):
        found = step(model, X[:CROSS], y[:CROSS], rtgp.RFF(count, "grid"))
        add(CROSS, f"RFF({count}, 'grid')", found, finest, "a grid of 2000" if finest else "")
        finest = finest or found
    rr = step(model, X[:CROSS], y[:CROSS], rtgp.RRCG(), 2)
    add(CROSS, "RRCG()", rr, finest, "sd of 2 draws")
    finest = None
    for count in reversed(FEATURES):
        found = step(model, X[:FULL], y[:FULL], rtgp.RFF(count, "grid"))
        add(FULL, f"RFF({count}, 'grid')", found, finest, "a grid of 2000" if finest else "")
        finest = finest or found
    rows.append(
        {
            "n": FULL,
            "method": "RRCG()",
            "gradient_norm": "",
            "gradient_error": "",
            "loss_error": "",
            "against": f"not run: seconds at n = {CROSS} times (n ratio)^2",
            "iterations": "",
            "seconds": f"{rr['seconds'] * (FULL / CROSS) ** 2:.3g}",
        }
    )
    print(rows[-1])
    print(f"rows appended to {record.append('frequency_grid', rows).name}")


if __name__ == "__main__":
    main()
