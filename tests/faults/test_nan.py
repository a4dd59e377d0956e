"""A NaN at some step of training: it reaches no parameter, the last good ones stay, and so does the checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

import rtgp
from gp_models import airports, make
from rtgp.errors import RTGPError
from rtgp.training import FitStatus, fit

X, Y = airports(30)
RUNS: dict[str, dict[str, Any]] = {
    "average information": {"method": "rr-cg", "tolerance": 1e-9},
    "adam": {"method": "rr-cg", "optimizer": "adam"},
    "cg": {"method": rtgp.CG(20), "optimizer": "multistep"},
    "cholesky, adam": {"method": "cholesky", "optimizer": "adam"},
    "cholesky, L-BFGS": {"method": "cholesky"},
    "rr-cg, L-BFGS": {"method": "rr-cg", "optimizer": "lbfgs"},
    "SGD": {"method": "rr-cg", "optimizer": torch.optim.SGD, "learning_rate": 0.01},
    "rff": {"method": rtgp.RFF(features=20)},
    "sggp": {"method": rtgp.SGGP(neighbours=5)},
}
STEPS = 8


class Prior(gpytorch.priors.NormalPrior):
    """Whose logarithm, or its gradient alone, is NaN from a given call on."""

    kind = "value"
    fuse = math.inf

    def log_prob(self, x):
        value = super().log_prob(x)
        type(self).fuse -= 1
        if self.fuse >= 0:
            return value
        if self.kind == "value":
            return value * math.nan
        return value + (0.0 * x.abs()).sqrt().sum()  # 0, with the gradient 0 / 0


class Kernel(RBFKernel):
    """Not one that the library knows by its class: its own forward is called."""

    kind = "kernel"
    fuse = math.inf

    def forward(self, x1, x2, **settings):
        found = super().forward(x1, x2, **settings)
        if type(self).fuse >= 0:
            return found
        return found * math.nan if self.kind == "kernel" else torch.where(found.detach() < 1.0, math.nan, found)


@pytest.fixture(autouse=True)
def healthy():
    Prior.fuse = Kernel.fuse = math.inf
    yield
    Prior.fuse = Kernel.fuse = math.inf


def parameters(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def train(
    folder: Path | None, run: str, prior: bool, callback=None
) -> tuple[torch.nn.Module, rtgp.FitResult | RTGPError]:
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2) if prior else Kernel(ard_num_dims=2))
    if prior:
        kernel.register_prior("p", Prior(0.0, 3.0), lambda module: module.raw_outputscale)
    model = make(X, Y, kernel=kernel)
    settings = {
        "checkpoint": folder,
        "checkpoint_every": 1,
        "steps": STEPS,
        "subset_start": False,
        "callback": callback,
    }
    try:
        return model, fit(model, model.likelihood, X, Y, **{**settings, **RUNS[run]})
    except RTGPError as error:
        return model, error


@pytest.mark.filterwarnings("ignore::rtgp.training.ConvergenceWarning")
@pytest.mark.parametrize("run", [run for run in RUNS if run not in ("rff", "sggp")])
@pytest.mark.parametrize("kind", ["value", "gradient", "kernel", "off the diagonal"])
def test_none_reaches_a_parameter(run: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prior, "kind", kind)
    monkeypatch.setattr(Kernel, "kind", kind)
    prior = kind in ("value", "gradient")
    wanted, _ = train(None, run, prior)
    seen: list[torch.Tensor] = []

    def light(row, model) -> None:
        seen.append(parameters(model))
        if row["step"] == 3:
            (Prior if prior else Kernel).fuse = -1

    model, ended = train(tmp_path, run, prior, light)
    assert isinstance(ended, rtgp.FitResult), ended
    assert ended.status is FitStatus.LIMIT
    found = parameters(model)
    assert bool(torch.isfinite(found).all())
    assert all(bool(torch.isfinite(one).all()) for one in seen)
    assert all(parameter.grad is None for parameter in model.parameters())
    Prior.fuse = Kernel.fuse = math.inf
    steps: list[int] = []
    healed, result = train(tmp_path, run, prior, lambda row, _: steps.append(row["step"]))
    assert not isinstance(result, RTGPError), result
    assert 1 <= steps[0] <= 4
    assert torch.equal(parameters(healed), parameters(wanted))


@pytest.mark.filterwarnings("ignore::rtgp.errors.ApproximationWarning")
@pytest.mark.parametrize("run", ["rff", "sggp"])
def test_none_reaches_a_parameter_by_other_methods(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prior, "kind", "gradient")

    def light(row, model) -> None:
        if row["step"] == 3:
            Prior.fuse = -1

    model, ended = train(None, run, True, light)
    assert isinstance(ended, rtgp.FitResult), ended
    assert ended.status is FitStatus.LIMIT
    assert "has not been applied" in ended.message
    assert bool(torch.isfinite(parameters(model)).all())


class Wild(torch.optim.SGD):
    """Goes to infinity in its last step."""

    def step(self, closure=None):
        loss = super().step(closure)
        self.count = getattr(self, "count", 0) + 1
        if self.count == STEPS:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(math.inf)
        return loss


def test_an_optimiser_that_leaves_the_numbers_in_its_last_step() -> None:
    """The step is taken back, and a smaller one taken."""
    model = make(X, Y)
    result = fit(model, model.likelihood, X, Y, "cholesky", Wild, steps=STEPS, learning_rate=1e-3)
    assert result.steps == STEPS
    assert bool(torch.isfinite(parameters(model)).all())
