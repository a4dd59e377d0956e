"""CG and RR-CG on a card: kept recordings, kept memory, and no number that was never written."""

from __future__ import annotations

import math

import pytest
import torch

import rtgp
import triton_mode
from objectives.rounding import Evaluator, Scatter, make_data, make_model
from rtgp._solvers import NoiseUnits
from rtgp._solvers.fused_iteration import FusedIteration
from rtgp.training._problem import Problem

pytestmark = [pytest.mark.gpu, triton_mode.needs_cuda]


CALLS = 6


def verdicts(method: rtgp.RRCG) -> tuple[list[bool | None], int]:
    """For each call after the first: whether it is what the same call gives without anything kept but the state. And
    how often a recording was used again."""
    x, y = make_data(700, 5)
    kept = Evaluator(x, y, method, "cuda")
    found, restarts = [], []
    restart = FusedIteration.restart
    for k in range(CALLS):
        noise, state = 0.01 * (1 + k), kept.state()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FusedIteration, "restart", lambda run, *args: (restarts.append(run), restart(run, *args))[1])
            one = kept.call(noise, k)
        if k > 0:
            scatter = Scatter.of(x, y, method, state, noise, k, "cuda")
            found.append(None if scatter is None else scatter.holds(one))
    return found, len(restarts)


@pytest.mark.parametrize("refresh", [None, 1], ids=["kept", "renewed"])
def test_a_recording_serves_the_next_call(refresh: int | None) -> None:
    """The noise moves from call to call; the bound is the scatter by rounding, measured in each call (`rounding`).

    Most calls must be comparable: in which the truncations are the same. False alarm: rounding moves a truncation in at
    most one call of twenty, so three of five with a probability of 1e-3; the bound itself 1e-5."""
    found, restarts = verdicts(rtgp.RRCG(refresh=refresh, preconditioner=rtgp.PivotedCholesky()))
    assert restarts > 0
    assert False not in found
    assert found.count(True) >= 3


@pytest.mark.parametrize("refresh", [None, 1], ids=["kept", "renewed"])
def test_a_stale_recording_would_be_seen(refresh: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: the noise of the first call stays in the memory that a recording reads."""
    monkeypatch.setattr(NoiseUnits, "renew", lambda system, form, noise: system.operator.renew(form))
    assert True not in verdicts(rtgp.RRCG(refresh=refresh, preconditioner=rtgp.PivotedCholesky()))[0]


@pytest.mark.parametrize("n, d", [(700, 3), (700, 26), (5000, 8)])
@pytest.mark.parametrize("method", [rtgp.RRCG(), rtgp.CG(20), rtgp.Cholesky()], ids=["rr-cg", "cg", "cholesky"])
def test_nothing_is_read_that_was_not_written(method: object, n: int, d: int) -> None:
    """Memory that is handed out again is full of NaN."""
    torch.cuda.empty_cache()
    poison = [torch.full((2**24,), math.nan, device="cuda") for _ in range(16)]
    poison += [torch.full((2**k,), math.nan, device="cuda") for k in range(7, 20) for _ in range(16)]
    del poison
    model = make_model(*make_data(n, d), "cuda")
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
        model = make_model(*make_data(4500, 3, torch.float64), device)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.Cholesky())
        (-mll(model(*model.train_inputs), model.train_targets)).backward()
        gradients.append(torch.cat([p.grad.reshape(-1).cpu() for p in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
