"""Unbiasedness of SS-RFF through the public drop-in: the value and every component of the gradient.

Seeds are fixed. With 6 components in 4 settings, |z| < 4 has a false-alarm probability of about 0.2% over all of them
for a new seed; plain RFF, with more features than SS-RFF takes on average, must fail the same test by far.
"""

from __future__ import annotations

import pytest
import torch

import rtgp
from gp_models import airports
from models import Regression, gradient

N = 100


@pytest.fixture(scope="module")
def setting():
    x, y = airports(N)
    model = Regression(x, y).set(lengthscale=0.7, outputscale=1.0, noise=0.1)
    exact = gradient(model, rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky"))
    return model, exact


def z_scores(model, exact, method, draws):
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=torch.Generator().manual_seed(12345))
    results = [gradient(model, mll) for _ in range(draws)]
    samples = torch.stack([torch.cat([g, torch.tensor([v], dtype=torch.float64)]) for g, v in results])
    wanted = torch.cat([exact[0], torch.tensor([exact[1]], dtype=torch.float64)])
    return (samples.mean(0) - wanted) / (samples.std(0) / draws**0.5)


METHODS = {
    "default": rtgp.SSRFF(),
    "orthogonal, not scaled": rtgp.SSRFF(scaled=False, frequencies="orthogonal"),
    "steps of 10, 1/J": rtgp.SSRFF.paper(minimum=20, step=10),
    "steps of 1, fitted": rtgp.SSRFF(40, 1),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_ss_rff_is_unbiased(setting, method):
    assert float(z_scores(*setting, method, 500).abs().max()) < 4.0


@pytest.mark.parametrize("frequencies", ["random", "orthogonal"])
def test_plain_rff_is_not(setting, frequencies):
    """Both terms of the value are biased, in opposite directions; the gradients show it best."""
    z = z_scores(*setting, rtgp.RFF(60, frequencies), 300)
    assert float(z.abs().max()) > 10.0
