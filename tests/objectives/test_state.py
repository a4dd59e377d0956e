"""An objective's state, saved and taken up, continues bit for bit."""

from __future__ import annotations

import pytest
import torch

import rtgp
from models import Regression, gradient


def make(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(80, 2, dtype=dtype, generator=generator)
    y = torch.sin(5 * x[:, 0]) + 0.1 * torch.randn(80, dtype=dtype, generator=generator)
    return Regression(x, y).set(lengthscale=0.4, outputscale=1.0, noise=0.02)


METHODS = [rtgp.RRCG(), rtgp.RRCG(preconditioner=None), rtgp.CG(10), rtgp.Cholesky()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS, ids=["rr-cg", "rr-cg, no preconditioner", "cg", "cholesky"])
def test_resumes_bit_for_bit(method, dtype):
    model = make(dtype)
    generator = torch.Generator().manual_seed(1)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=generator)
    for _ in range(3):
        gradient(model, mll)
    state = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in mll._objective.state_dict().items()}
    random = generator.get_state()
    wanted = [gradient(model, mll) for _ in range(12)]

    other = torch.Generator()
    other.set_state(random)
    resumed = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=other)
    resumed._objective.load_state_dict(state)
    for gradient_wanted, value_wanted in wanted:
        found, value = gradient(model, resumed)
        assert torch.equal(found, gradient_wanted)
        assert value == value_wanted
