"""Nearly deterministic data, on which conjugate gradients make no progress: `RRCG()` beside Cholesky, from one start.

Targets are smooth functions of many inputs, some of them near-duplicates of others, in float32, with the noise at its
lower bound. A row has the seconds of both trainings, one after the other, and the exact objective at the end of
`RRCG()` above that of Cholesky, per point.

    RTGP_DATA=folder python benchmarks/bench_deterministic.py --sets smooth,waves,bike --n 4500 --model own

model: "own" is that of `GPRegressor`, whose lengthscales begin at the root of the number of inputs; "gpytorch" begins
at ln 2, as GPyTorch does, and has its lower bound of the noise, 1e-4.
"""

from __future__ import annotations

import argparse
import time
import warnings

import gpytorch
import numpy as np
import record
import torch

import rtgp
from rtgp._estimator.model import RegressionModel, named_kernel, new_model
from rtgp.training._problem import Problem

SETS = ("smooth", "linear", "categories", "waves", "bike")


def make_data(name: str, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(0)
    if name == "bike":
        part = rtgp.datasets.load("bike").split(0)[0].subset(n, seed=0)
        X, y = part.X[:, part.X.std(0) > 1e-6], part.y
    elif name == "smooth":
        Z = generator.normal(size=(n, 14))
        X = np.hstack([Z, Z[:, :6] + 1e-3 * generator.normal(size=(n, 6))])
        y = np.sin(Z[:, 0]) + 0.5 * Z[:, 1] * Z[:, 2] + np.cos(Z[:, 3] + Z[:, 4]) + 0.1 * Z[:, 5] ** 2
    elif name == "linear":
        X = generator.normal(size=(n, 20))
        X[:, 10:15] = X[:, :5] * (1.0 + 1e-4 * generator.normal(size=(n, 5)))
        y = X @ generator.normal(size=20) + 0.1 * np.tanh(X[:, 0])
    elif name == "categories":
        X = np.hstack([generator.integers(0, 3, (n, 8)).astype(float), generator.normal(size=(n, 12))])
        y = X[:, :8].sum(1) * np.sin(X[:, 8]) + X[:, 9]
    else:
        X = generator.random((n, 20))
        X[:, 15:] = X[:, :5] + 1e-5 * generator.normal(size=(n, 5))
        y = np.sin(4.0 * X[:, 0] + 3.0 * X[:, 1]) * np.exp(-X[:, 2]) + X[:, 3] ** 3
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def train(x: torch.Tensor, y: torch.Tensor, kind: str, method: object) -> tuple[rtgp.FitResult, float, float]:
    """The result, the seconds it took, and the exact objective per point at its end."""
    if kind == "own":
        model = new_model(x, y, "rbf", None)
    else:
        model = RegressionModel(x, y, gpytorch.likelihoods.GaussianLikelihood(), named_kernel("rbf", x.shape[1]))
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = rtgp.fit(model, model.likelihood, x, y, method=method)
    seconds = time.perf_counter() - began
    x, y = x.double(), y.double()
    model.double().train(), model.likelihood.train()
    model.set_train_data(x, y, strict=False)
    return result, seconds, Problem(model, model.likelihood, x, y, rtgp.Cholesky(), 0).estimates(1)[0][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--n", type=int, default=4500)
    parser.add_argument("--model", choices=("own", "gpytorch"), default="own")
    given = parser.parse_args()
    for name in given.sets.split(","):
        x, y = make_data(name, given.n)
        exact, exact_seconds, best = train(x, y, given.model, rtgp.Cholesky())
        result, seconds, reached = train(x, y, given.model, rtgp.RRCG())
        row = {
            "set": name, "model": given.model, "n": given.n, "d": x.shape[1], "cholesky_s": round(exact_seconds, 1),
            "rr_cg_s": round(seconds, 1), "ratio": round(seconds / exact_seconds, 2),
            "cholesky_objective": round(best, 5), "rr_cg_objective": round(reached, 5),
            "above": round(reached - best, 5),
            "cholesky_steps": exact.steps, "rr_cg_steps": result.steps, "status": result.status.value,
            "ended_by": type(result.method).__name__,
        }  # fmt: skip
        print(row, flush=True)
        record.append("deterministic", [row])


if __name__ == "__main__":
    main()
