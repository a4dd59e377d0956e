"""Makes what version 0.1 wrote: models, checkpoints of interrupted trainings, and what became of both.

    PYTHONPATH=<checkout of commit 748f504>/src python tests/golden/version_0_1/make.py

The test imports the data, the models and the runs from here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import GreaterThan
from torch import Tensor

import rtgp
from rtgp.training import fit

FOLDER = Path(__file__).parent
N = 12
MODELS = {"cholesky": "cholesky", "rr-cg": "rr-cg", "svgp": rtgp.SVGP(inducing=4, batch_size=6)}
RUNS: dict[str, dict[str, Any]] = {
    "newton": {"method": "rr-cg", "steps": 8, "tolerance": 1e-9},
    "newton-cg": {"method": rtgp.CG(10), "steps": 8, "tolerance": 1e-9},
    "adam": {"method": rtgp.CG(10), "optimizer": "adam", "steps": 8},
    "lbfgs": {"method": "cholesky", "steps": 8},
    "lbfgs-bounds": {"method": "cholesky", "steps": 8},  # of BoTorch's kind, without a transform
}
LAST = 3  # step after which a run is interrupted


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (n, 2), targets (n,) and new inputs, by operations that round alike everywhere."""
    numbers = torch.arange(2 * N, dtype=torch.float64)
    X = ((7 * numbers).remainder(31) / 31).reshape(N, 2)
    y = (X[:, 0] - X[:, 1]).square() + X[:, 0] + (5 * numbers[:N]).remainder(11) / 64
    return X, y, ((11 * numbers[:10]).remainder(29) / 29).reshape(5, 2)


class Model(gpytorch.models.ExactGP):
    def __init__(self, X: Tensor, y: Tensor) -> None:
        super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def problem(run: str) -> tuple[Model, Any, Tensor, Tensor]:
    X, y, _ = data()
    model = Model(X, y)
    if run == "lbfgs-bounds":
        bound = GreaterThan(1e-4, transform=None, initial_value=0.1)
        model.likelihood.noise_covar.register_constraint("raw_noise", bound)
    return model.double(), model.likelihood, X, y


def predictions(model: Any) -> dict[str, list[float]]:
    mean, std = model.predict(data()[2].numpy(), return_std=True)
    return {"mean": mean.tolist(), "std": std.tolist()}


def parameters(model: Any) -> dict[str, list[float]]:
    return {name: parameter.reshape(-1).tolist() for name, parameter in model.named_parameters()}


def _newest(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())[-2:]


def main() -> None:
    X, y, _ = data()
    known: dict[str, Any] = {"predictions": {}, "values": {}, "ends": {}}
    for name, method in MODELS.items():
        model = rtgp.GPRegressor(method=method, steps=2, random_state=0, device="cpu").fit(X.numpy(), y.numpy())
        model.save(FOLDER / "models" / name)
        known["predictions"][name] = predictions(model)
        known["values"][name] = model.log_marginal_likelihood_value_
    for name, run in RUNS.items():
        with TemporaryDirectory() as whole:
            stop = {"checkpoint_every": 2, "callback": lambda row, _: row["step"] == LAST}
            began = fit(*problem(name), **run, checkpoint=whole, **stop)
            kept = FOLDER / "checkpoints" / name
            kept.mkdir(parents=True, exist_ok=True)
            for path in _newest(Path(whole)):
                shutil.copy(path, kept)
            own = problem(name)
            result = fit(*own, **run, checkpoint=whole)
        known["ends"][name] = {
            "seconds": [row["seconds"] for row in began.history.rows],  # of the steps before the interruption
            "first": result.history.rows[LAST + 1],
            "steps": result.steps,
            "loss": result.loss,
            "parameters": parameters(own[0]),
        }
    (FOLDER / "known.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
