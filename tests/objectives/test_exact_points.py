"""On a few dozen points `RRCG()` is exact: a probe for each direction, and no series that ends early."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rtgp
from gp_models import airports, make
from rtgp._objectives import EstimateSettings

N = 48


def slopes(
    method: object, seed: int = 0, n: int = N, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, float]:
    """Objective, gradient, and the stated error of the value."""
    X, y = airports(n, dtype=dtype)
    model = make(X, y)
    generator = torch.Generator().manual_seed(seed)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator)  # type: ignore[arg-type]
    for _ in range(2):  # the second has a warm start
        model.zero_grad()
        value = mll(model(X), y)
        value.backward()
    assert mll.last is not None
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    return value.detach(), gradient, mll.last.value_error


def test_value_and_gradient_are_those_of_cholesky() -> None:
    value, gradient, error = slopes(rtgp.RRCG())
    exact, wanted, _ = slopes(rtgp.Cholesky())
    torch.testing.assert_close(value, exact, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-8)
    assert error == 0.0


def test_in_float32() -> None:
    value, gradient, _ = slopes(rtgp.RRCG(), dtype=torch.float32)
    exact, wanted, _ = slopes(rtgp.Cholesky())
    torch.testing.assert_close(value.double(), exact, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-2, atol=1e-3)


def test_the_seed_does_not_matter() -> None:
    torch.testing.assert_close(slopes(rtgp.RRCG(), 1)[1], slopes(rtgp.RRCG(), 2)[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "method",
    [
        rtgp.RRCG(_settings=EstimateSettings(exact_points=N - 1)),
        rtgp.RRCG(probes=4),
        rtgp.RRCG(truncation=rtgp.truncation.ExponentialDecay(rate=0.1, minimum=5)),
        rtgp.RRCG.paper(),
    ],
    ids=["more points", "probes asked for", "truncation asked for", "the paper's"],
)
def test_what_is_asked_for_stays_random(method: rtgp.RRCG) -> None:
    """The companion: seeds do matter elsewhere. Two gradients agree by chance with probability 0."""
    (_, one, error), (_, two, _) = slopes(method, 1), slopes(method, 2)
    assert float((one - two).abs().max()) > 1e-6
    assert error > 0.0 or math.isnan(error)


def test_frozen_draws_are_exact_too() -> None:
    X, y = airports(N, dtype=torch.float64)
    model = make(X, y)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.RRCG(), draws="frozen")
    exact = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.Cholesky())
    torch.testing.assert_close(mll(model(X), y), exact(model(X), y), rtol=1e-7, atol=1e-9)


def test_a_fit_states_no_error() -> None:
    X, y = airports(N, dtype=torch.float64)
    model = make(X, y)
    result = rtgp.fit(model, model.likelihood, X, y, rtgp.RRCG())
    assert result.status.value == "converged"
    assert result.loss_error == 0.0
