"""Unbiasedness through the public drop-in, on real data: every hyperparameter, every kind of probe.

Seeds are fixed. With 20 components in 8 settings, |z| < 4 has a false-alarm probability of about 1% over all of them
for a new seed; plain CG(20) must fail the same test by far.
"""

from __future__ import annotations

import pytest
import torch

import rtgp
from models import Regression, gradient, real_training_data
from rtgp.truncation import ExponentialDecay

N = 300
DRAWS = 300

pytestmark = pytest.mark.real_data


@pytest.fixture(scope="module")
def setting(real_data):
    x, y = real_training_data("bike", N, real_data)
    model = Regression(x, y).set(lengthscale=2.0, outputscale=1.0, noise=0.01)
    exact = gradient(model, rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky"))
    return model, exact


def z_scores(model, exact, method, draws=DRAWS):
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=torch.Generator().manual_seed(12345))
    results = [gradient(model, mll) for _ in range(draws)]
    samples = torch.stack([torch.cat([g, torch.tensor([v], dtype=torch.float64)]) for g, v in results])
    wanted = torch.cat([exact[0], torch.tensor([exact[1]], dtype=torch.float64)])
    return (samples.mean(0) - wanted) / (samples.std(0) / draws**0.5).clamp_min(1e-12)


METHODS = {
    "automatic": rtgp.RRCG(),
    "rademacher": rtgp.RRCG(probe_kind="rademacher"),
    "gaussian": rtgp.RRCG(probe_kind="gaussian"),
    "no preconditioner": rtgp.RRCG(preconditioner=None),
    "no preconditioner, gaussian": rtgp.RRCG(preconditioner=None, probe_kind="gaussian"),
    "no warm start": rtgp.RRCG(warm_start=False),
    # Not the best preconditioner: it ends the series before the 20th term, and there is no noise to measure against.
    "exponential decay": rtgp.RRCG(ExponentialDecay(rate=0.2, minimum=20), preconditioner=rtgp.PivotedCholesky()),
    "paper": rtgp.RRCG.paper(truncation=ExponentialDecay(rate=0.1, minimum=30)),
}


SLOW = {
    "paper",
    "rademacher",
    "exponential decay",
    "no warm start",
    "gaussian",
    "no preconditioner",
    "no preconditioner, gaussian",
}
CASES = [
    pytest.param(method, id=name, marks=pytest.mark.slow if name in SLOW else ()) for name, method in METHODS.items()
]


@pytest.mark.parametrize("method", CASES)
def test_gradient_and_value_are_unbiased(setting, method):
    assert float(z_scores(*setting, method).abs().max()) < 4.0


@pytest.mark.parametrize("preconditioner", [None, rtgp.PivotedCholesky(5)], ids=["none", "rank 5"])
def test_plain_cg_is_not(setting, preconditioner):
    z = z_scores(*setting, rtgp.CG(20, preconditioner=preconditioner), draws=100)
    assert float(z.abs().max()) > 10.0


# Of 9, 8 and 26 inputs, from noisy to nearly without noise.
SETS = {
    "protein": (400, 1.0, 1.0, 0.3),
    "kin40k": (500, 2.0, 1.0, 0.02),
    "pol": (300, 1.5, 1.0, 0.01),
}  # points, lengthscale, outputscale, noise
SHAPES = {
    "neighbours": rtgp.Neighbours(8),
    "low rank and neighbours": rtgp.LowRankAndNeighbours(20, 8),
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name == "pol" else pytest.mark.slow) for name in SETS]
)
def real_setting(request, real_data):
    n, *point = SETS[request.param]
    model = Regression(*real_training_data(request.param, n, real_data)).set(*point)
    exact = gradient(model, rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky"))
    return model, exact


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_neighbours_are_unbiased_on_three_sets(real_setting, shape):
    """13, 12 and 30 components in two settings: |z| < 4 has a false-alarm probability of 6e-5 * 110, 0.7%, over all of
    them."""
    assert float(z_scores(*real_setting, rtgp.RRCG(preconditioner=shape), draws=200).abs().max()) < 4.0


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_plain_cg_with_the_same_neighbours_is_not(real_setting, shape):
    """Two iterations. The same bar has the same false alarm; the bias is many times as large."""
    assert float(z_scores(*real_setting, rtgp.CG(2, preconditioner=shape), draws=100).abs().max()) > 10.0
