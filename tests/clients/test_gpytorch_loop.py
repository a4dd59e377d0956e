"""A plain GPyTorch training loop in which one line changes."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood

import rtgp
from gp_models import Model, airports, exact

N = 300


def train(make_mll, steps: int = 120, n: int = N, dtype: torch.dtype = torch.float64) -> float:
    """GPyTorch's tutorial; returns the exact objective per point at the end."""
    train_x, train_y = airports(n, dtype=dtype)
    likelihood = GaussianLikelihood()
    model = Model(train_x, train_y, likelihood).to(dtype)
    model.train()
    likelihood.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    mll = make_mll(likelihood, model)

    for _ in range(steps):
        optimizer.zero_grad()
        output = model(train_x)
        loss = -mll(output, train_y)
        loss.backward()
        optimizer.step()
        schedule.step()
    double = Model(train_x.double(), train_y.double(), GaussianLikelihood()).double()
    double.load_state_dict(model.state_dict())
    return float(exact(double.train(), train_y.double())[0])


@pytest.fixture(scope="module")
def optimum() -> float:
    with gpytorch.settings.fast_computations(False, False, False):
        return train(gpytorch.mlls.ExactMarginalLogLikelihood)


@pytest.mark.parametrize("method", ["cholesky", "rr-cg", rtgp.RRCG.paper()], ids=["cholesky", "rr-cg", "paper"])
def test_ends_at_the_exact_optimum(optimum, method):
    def make_mll(likelihood, model):
        generator = torch.Generator().manual_seed(0)
        return rtgp.MarginalLogLikelihood(likelihood, model, method=method, generator=generator)

    assert abs(optimum - train(make_mll)) < 0.01


def test_in_float32(optimum):
    def make_mll(likelihood, model):
        return rtgp.MarginalLogLikelihood(likelihood, model, generator=torch.Generator().manual_seed(0))

    assert abs(optimum - train(make_mll, dtype=torch.float32)) < 0.01
