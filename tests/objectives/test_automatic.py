"""Unbiasedness of RRCG() with all that it decides by itself, on real data.

Rank, staleness and warm start come from three earlier calls at other hyperparameters: a past that no draw of the call
to come has had a part in, and on which its mean must therefore not depend. Seeds are fixed; with about 70 components,
|z| < 4 has a false-alarm probability of about 0.5% for a new seed. Plain CG(10) must fail the same test by far.
"""

from __future__ import annotations

import pytest
import torch

import rtgp
from models import Regression, gradient, real_training_data

N = 500
DRAWS = 300
PATH = ((1.0, 0.5, 0.3), (3.0, 1.5, 0.02), (2.6, 1.4, 0.024))  # lengthscale, outputscale, noise
NEAR, FAR = (2.55, 1.38, 0.0244), (3.3, 1.8, 0.032)
SETS = {"bike": NEAR, "pol": FAR, "kin40k": NEAR}  # FAR: where the past has worn the preconditioner out

pytestmark = [pytest.mark.slow, pytest.mark.real_data]


@pytest.fixture(scope="module", params=list(SETS))
def setting(request, real_data):
    x, y = real_training_data(request.param, N, real_data)
    model = Regression(x, y).set(*SETS[request.param])
    value = with_value(gradient(model, rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")))
    return SETS[request.param], model, value


def with_value(found: tuple[torch.Tensor, float]) -> torch.Tensor:
    return torch.cat([found[0], torch.tensor([found[1]], dtype=torch.float64)])


def z_scores(point, model: Regression, exact: torch.Tensor, method, draws: int = DRAWS):
    """One for each hyperparameter and for the value; with the statistics of the last call."""
    generator = torch.Generator().manual_seed(2024)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator)
    for earlier in PATH:
        model.set(*earlier)
        gradient(model, mll)
    model.set(*point)
    past = mll._objective.state_dict()
    samples = []
    for _ in range(draws):
        mll._objective.load_state_dict(past)
        samples.append(with_value(gradient(model, mll)))
    found = torch.stack(samples)
    matter = exact.abs() > 1e-12  # not an input that is constant in these rows
    z = (found.mean(0) - exact) / (found.std(0) / draws**0.5)
    return z[matter], mll.last


def test_the_automatic_method_is_unbiased(setting):
    z, last = z_scores(*setting, rtgp.RRCG())
    assert float(z.abs().max()) < 4.0
    assert last.rebuilt == (setting[0] is FAR)
    assert last.rank != rtgp.PivotedCholesky().rank_for(N, 12)  # the past has chosen it


def test_plain_cg_is_not(setting):
    z, _ = z_scores(*setting, rtgp.CG(10, preconditioner=rtgp.PivotedCholesky(5)), draws=60)
    assert float(z.abs().max()) > 10.0
