"""limited_memory.py SCENE ...: with 1 GiB of address space beyond what the libraries take; a line on each."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import gpytorch
import numpy as np
import torch

import rtgp
from rtgp._objectives import cholesky as cholesky_objective

N = 30_000


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    X = chance.uniform(size=(n, 2))
    return X, np.sin(6.0 * X[:, 0]) + 0.1 * chance.normal(size=n)


def cholesky() -> None:
    rtgp.GPRegressor(method="cholesky", random_state=0).fit(*data(N))


def cholesky_unasked() -> None:
    """The system says that there is memory, and then there is none."""
    cholesky_objective.available_memory = lambda: 2**60
    rtgp.GPRegressor(method="cholesky", random_state=0).fit(*data(N))


def dense() -> None:
    rtgp.GPRegressor(method=rtgp.RRCG(operator="dense"), random_state=0).fit(*data(N))


def covariance() -> None:
    fitted = rtgp.GPRegressor(random_state=0, steps=1).fit(*data(100))
    fitted.predict(data(11_500)[0], return_cov=True)


class GPyTorchModel(gpytorch.models.ExactGP):
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean, self.kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()
        self.train()

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def drop_in() -> None:
    X, y = (torch.tensor(part, dtype=torch.float32) for part in data(N))
    model = GPyTorchModel(X, y)
    rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.RRCG(operator="dense"))(model(X), y)


def table() -> None:
    with open("sparse.csv", "wb") as file:
        file.truncate(2**41)
    rtgp.datasets.read_table("sparse.csv")


def tiled() -> None:
    """The remedy: within the same memory, points whose kernel matrix does not fit into it."""
    X, y = (torch.tensor(part, dtype=torch.float32) for part in data(20_000))
    model, method = GPyTorchModel(X, y), rtgp.RRCG(operator="tiled", probes=2)
    result = rtgp.fit(model, model.likelihood, X, y, method, steps=1, optimizer="adam", subset_start=False)
    sys.stdout.write(f"trained on {len(y)} points, loss {result.loss:.2f}\n")


SCENES = {scene.__name__: scene for scene in (cholesky, cholesky_unasked, dense, covariance, drop_in, table, tiled)}


def main(scenes: list[str]) -> None:
    torch.set_num_threads(1)
    rtgp.GPRegressor(random_state=0, steps=1).fit(*data(20)).predict(data(5)[0])  # loads what is loaded late
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30, taken + 2**30))
    for scene in scenes:
        try:
            SCENES[scene]()
        except rtgp.errors.OutOfMemoryError as error:
            sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
