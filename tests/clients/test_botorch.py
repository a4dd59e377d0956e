"""BoTorch's SingleTaskGP, priors, transforms and all, trained by both of BoTorch's own fitting routines."""

from __future__ import annotations

from functools import partial

import gpytorch
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim.fit import fit_gpytorch_mll_torch

import rtgp
from gp_models import airports

N = 300
X, Y = airports(N)


def new_model() -> SingleTaskGP:
    return SingleTaskGP(X, Y[:, None], input_transform=Normalize(2))


def objective(model: SingleTaskGP) -> float:
    """What fit_gpytorch_mll maximises, priors included, by Cholesky."""
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model).train()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        return float(mll(model(*model.train_inputs), model.train_targets, *model.train_inputs))


@pytest.fixture(scope="module")
def optimum() -> float:
    model = new_model()
    fit_gpytorch_mll(gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model))
    return objective(model)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_starts_far_from_the_optimum(optimum):
    assert objective(new_model()) < optimum - 1.0


# The line search tries noise 1e-4, where CG with the first preconditioner takes 4 n steps and more: rounding costs the
# Lanczos vectors their orthogonality. Reorthogonalised, the run ends within n steps.
@pytest.mark.parametrize("method", ["cholesky", pytest.param("rr-cg", marks=pytest.mark.slow)])
def test_lbfgs_on_frozen_draws(optimum, method):
    model = new_model()
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, seeded(0), draws="frozen")
    fit_gpytorch_mll(mll)
    assert not mll.training  # BoTorch's sign of success
    assert optimum - objective(model) < 0.01


def test_adam_on_fresh_draws(optimum):
    """BoTorch stops Adam once a mean of ten values falls by less than 1e-5 of itself: on a noisy objective that is at
    the first unlucky step, whatever the estimator. A number of steps is what a stochastic objective needs."""
    model = new_model()
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, generator=seeded(0))
    steps = 300
    fit_gpytorch_mll(
        mll,
        optimizer=fit_gpytorch_mll_torch,
        optimizer_kwargs={
            "optimizer": partial(torch.optim.Adam, lr=0.01),
            "scheduler": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=steps),
            "step_limit": steps,
            "stopping_criterion": None,
        },
    )
    assert not mll.training
    assert optimum - objective(model) < 0.01


def test_the_trained_model_predicts():
    model = new_model()
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky", draws="frozen")
    fit_gpytorch_mll(mll)
    posterior = model.posterior(X[:5])
    assert bool(torch.isfinite(posterior.mean).all())
    assert bool((posterior.variance > 0).all())


def test_two_outputs_train_as_two_models():
    """They are a batch: each has its own marginal likelihood."""
    together = SingleTaskGP(X[:20], torch.stack([Y[:20], -Y[:20]], dim=1), input_transform=Normalize(2))
    mll = rtgp.MarginalLogLikelihood(together.likelihood, together, "cholesky")
    found = mll(together(*together.train_inputs), together.train_targets)
    for place, y in enumerate((Y[:20, None], -Y[:20, None])):
        alone = SingleTaskGP(X[:20], y, input_transform=Normalize(2))
        own = rtgp.MarginalLogLikelihood(alone.likelihood, alone, "cholesky")
        torch.testing.assert_close(found[place], own(alone(*alone.train_inputs), alone.train_targets))
