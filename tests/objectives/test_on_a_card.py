"""CG and RR-CG on a card: kept recordings, kept memory, and no number that was never written."""

from __future__ import annotations

import math

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood

import rtgp
import triton_mode
from gp_models import Model
from rtgp.objectives import KrylovObjective
from rtgp.training.problem import Problem

pytestmark = [pytest.mark.gpu, triton_mode.needs_cuda]


def model_of(n: int, d: int, dtype: torch.dtype = torch.float32) -> Model:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return Model(x.to(dtype), y.to(dtype), GaussianLikelihood()).to(device="cuda", dtype=dtype).train()


def evaluations(method: rtgp.RRCG, n: int, forget: bool) -> list[tuple[float, torch.Tensor]]:
    """(value, gradient) while the hyperparameters move; forget: nothing is kept from call to call but the solutions."""
    model = model_of(n, 5)
    generator = torch.Generator().manual_seed(0)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=generator)
    (objective,) = [part for part in vars(mll).values() if isinstance(part, KrylovObjective)]
    found = []
    for k in range(5):
        model.likelihood.noise = 0.01 * (1 + k)
        for parameter in model.parameters():
            parameter.grad = None
        if forget:
            objective.release()
        loss = -mll(model(*model.train_inputs), model.train_targets)
        loss.backward()
        pieces = [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
        found.append((float(loss.detach()), torch.cat(pieces).double().cpu()))
    return found


@pytest.mark.parametrize("refresh", [None, 1], ids=["kept", "renewed"])
def test_a_recording_serves_the_next_call(refresh: int | None) -> None:
    method = rtgp.RRCG(refresh=refresh)
    for (value, gradient), (wanted, exact) in zip(
        evaluations(method, 700, False), evaluations(method, 700, True), strict=True
    ):
        assert value == pytest.approx(wanted, abs=1e-4)
        assert float((gradient - exact).norm()) <= 1e-3 * float(exact.norm())


@pytest.mark.parametrize("n, d", [(700, 3), (700, 26), (5000, 8)])
@pytest.mark.parametrize("method", [rtgp.RRCG(), rtgp.CG(20), rtgp.Cholesky()], ids=["rr-cg", "cg", "cholesky"])
def test_nothing_is_read_that_was_not_written(method: object, n: int, d: int) -> None:
    """Memory that is handed out again is full of NaN."""
    torch.cuda.empty_cache()
    poison = [torch.full((2**24,), math.nan, device="cuda") for _ in range(16)]
    poison += [torch.full((2**k,), math.nan, device="cuda") for k in range(7, 20) for _ in range(16)]
    del poison
    model = model_of(n, d)
    problem = Problem(model, model.likelihood, *model.train_inputs, model.train_targets, method, 0)
    for _ in range(3):
        found = problem.evaluate(contrast=True, information=0.03)
        assert bool(torch.isfinite(found.gradient).all())
        assert found.contrast is None or bool(torch.isfinite(found.contrast).all())
        assert bool(torch.isfinite(found.information).all())
    assert math.isfinite(found.objective)


def test_the_inverse_in_place() -> None:
    """Cholesky's gradient where the tiles of the operator and the panels of the inverse are several."""
    gradients = []
    for device in ("cpu", "cuda"):
        model = model_of(4500, 3, torch.float64).to(device)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.Cholesky())
        (-mll(model(*model.train_inputs), model.train_targets)).backward()
        gradients.append(torch.cat([p.grad.reshape(-1).cpu() for p in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
