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


def test_what_is_learnt_of_the_noise_goes_on_too():
    """Calls as an optimiser makes them, at parameters that move: the preconditioner is kept and made anew, and the
    control variate's coefficients and the growth of the noise follow."""
    model = make()
    generator = torch.Generator().manual_seed(1)
    method = rtgp.RRCG(preconditioner=rtgp.PivotedCholesky(12))

    def calls(mll, first: int, last: int) -> list[float]:
        found = []
        for call in range(first, last):
            model.set(lengthscale=0.4 - 0.01 * call, outputscale=1.0 + 0.1 * call, noise=0.02)
            output = model(*model.train_inputs)
            information = None if call % 3 else 0.03
            estimate = mll.evaluate(output, model.train_targets, contrast=True, information=information)
            for scalar in (estimate.objective, estimate.contrast):
                pieces = torch.autograd.grad(scalar, list(model.parameters()), retain_graph=True, allow_unused=True)
                found += [float(piece.sum()) for piece in pieces if piece is not None]
        return found

    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=generator)
    calls(mll, 0, 5)
    state, random = dict(mll._objective.state_dict()), generator.get_state()
    assert float(state["growth"].abs().max()) > 0.0
    assert float(state["control_gram"].diagonal().min()) > 0.0
    wanted = calls(mll, 5, 12)

    other = torch.Generator()
    other.set_state(random)
    resumed = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=other)
    resumed._objective.load_state_dict(state)
    assert calls(resumed, 5, 12) == wanted
    forgetful = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=other.set_state(random))
    forgetful._objective.load_state_dict({name: value for name, value in state.items() if name != "control_gram"})
    assert calls(forgetful, 5, 12) != wanted
