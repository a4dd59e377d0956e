"""Further observations of a wrapped model: joined to the data, or as batches beside them, as BoTorch conditions."""

from __future__ import annotations

import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler

import rtgp.botorch
from clients.botorch_cases import TIGHT, data, function, new_model, points
from rtgp.errors import InputError, UnsupportedModelError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Data .*:botorch.exceptions.warnings.InputDataWarning"),
    # BoTorch's own model says so of observations with a batch of their own.
    pytest.mark.filterwarnings("ignore:Non-strict:botorch.exceptions.warnings.BotorchTensorDimensionWarning"),
]


def close(ours, theirs, rtol=1e-6):
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=rtol, atol=1e-7)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=rtol, atol=1e-7)


def both(model):
    wrapped = rtgp.botorch.wrap(model, method="cg", tolerance=TIGHT)
    model.posterior(points(2))  # GPyTorch conditions what has predicted
    return wrapped, model


def test_observations_join_the_data():
    wrapped, model = both(new_model())
    x, new = points(2, 3), points(5, seed=3)
    for one in (wrapped, model):
        one.eval()
    further, wanted = (one.condition_on_observations(new, function(new)) for one in (wrapped, model))
    close(further.posterior(x), wanted.posterior(x))
    assert further.train_inputs[0].shape == (65, 3)
    assert wrapped.train_inputs[0].shape == (60, 3)
    again, wanted = (one.condition_on_observations(new + 0.1, function(new + 0.1)) for one in (further, wanted))
    close(again.posterior(x), wanted.posterior(x))
    again.train(), again.eval()  # the inputs of before the transform are all there
    close(again.posterior(x), wanted.posterior(x))


def test_the_solve_starts_at_the_last_one():
    """A few points among many hardly change the solution."""
    model = new_model(400)
    wrapped, new = rtgp.botorch.wrap(model, method="cg", tolerance=1e-6), points(4, seed=3)
    wrapped.posterior(new)
    warm = wrapped.condition_on_observations(new, wrapped.posterior(new).mean.detach())
    cold = rtgp.botorch.wrap(warm, method="cg", tolerance=1e-6)
    cold._start = None
    assert warm._start.shape == (404, 1)
    warm.posterior(new), cold.posterior(new)
    assert warm.solver.report.iterations < cold.solver.report.iterations
    assert warm.solver.report.residual <= 1e-6


def test_known_noise():
    X, Y = data(40)
    wrapped, model = both(SingleTaskGP(X, Y, torch.full_like(Y, 0.3), input_transform=Normalize(3)))
    new, noise = points(3, seed=4), torch.full((3, 1), 0.002, dtype=torch.float64)
    ours, theirs = (m.condition_on_observations(new, function(new), noise=noise) for m in (wrapped, model))
    close(ours.posterior(points(4)), theirs.posterior(points(4)))
    noise = noise.expand(2, 3, 1)
    values = function(new).expand(2, 3, 1) + torch.arange(2.0)[:, None, None]
    ours, theirs = (m.condition_on_observations(new.expand(2, 3, 3), values, noise=noise) for m in (wrapped, model))
    close(ours.posterior(points(4)), theirs.posterior(points(4)))
    with pytest.raises(InputError, match="known one for each training point"):
        wrapped.condition_on_observations(new.expand(2, 3, 3), values)


@pytest.mark.parametrize("lead, fantasies", [((), 4), ((2,), 4), ((2, 3), 4)])
def test_fantasies(lead, fantasies):
    wrapped, model = both(new_model())
    x, sampler = points(*lead, 2, seed=5), SobolQMCNormalSampler(torch.Size([fantasies]), seed=0)
    ours, theirs = (one.fantasize(x, sampler) for one in (wrapped, model))
    at = points(fantasies, *lead, 3, seed=6)
    close(ours.posterior(at), theirs.posterior(at), rtol=1e-4)  # the samples are of two roots of nearly one matrix
    assert ours.batch_shape == theirs.batch_shape
    assert wrapped._fantasies is None


def test_gradients_of_fantasies():
    """In the points fantasised and in those asked about, with the fantasies' values held: by finite differences.

    BoTorch's own gradient in the former is that of a part alone, since its caches do not follow them.
    """
    wrapped, model = both(new_model())
    x, at = points(2, 1, seed=5).requires_grad_(True), points(3, 2, 2, seed=6).requires_grad_(True)
    values = function(x).detach().expand(3, 2, 1, 1) + torch.arange(3.0)[:, None, None, None]

    def total(one, x, at):
        posterior = one.condition_on_observations(x, values).posterior(at)
        return (posterior.mean * posterior.variance).sum()

    found, step = torch.autograd.grad(total(wrapped, x, at), (x, at)), 1e-5
    for which, gradient in enumerate(found):
        expected = torch.empty_like(gradient)
        for index in torch.cartesian_prod(*map(torch.arange, gradient.shape)).tolist():
            sides = []
            for sign in (1, -1):
                moved = [x.detach().clone(), at.detach().clone()]
                moved[which][tuple(index)] += sign * step
                sides.append(total(model, *moved).detach())
            expected[tuple(index)] = (sides[0] - sides[1]) / (2 * step)
        assert float((gradient - expected).abs().max() / expected.abs().max()) < 1e-5


def test_fantasies_of_fantasies():
    wrapped, model = both(new_model())
    x, more, at = points(2, 2, seed=5), points(2, 1, seed=8), points(2, 3, seed=6)
    step = [one.condition_on_observations(x, function(x)) for one in (wrapped, model)]
    close(*(one.condition_on_observations(more, function(more)).posterior(at) for one in step))


def test_a_list_of_models():
    wrapped, model = both(ModelListGP(new_model(40), new_model(50)))
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
    x, at = points(2, seed=5), points(4, seed=6)
    assert (
        wrapped.fantasize(x, sampler).posterior(at).mean.shape == model.fantasize(x, sampler).posterior(at).mean.shape
    )
    values = torch.cat([function(x), function(x) + 1.0], 1)
    ours, theirs = (one.condition_on_observations([x, x], values) for one in (wrapped, model))
    close(ours.posterior(at), theirs.posterior(at))


def test_few_points_are_fantasised_by_botorch():
    """Also where a model is fantasised as one of a list."""
    for plain in (new_model(40), ModelListGP(new_model(40), new_model(50))):
        wrapped = rtgp.botorch.wrap(plain)
        x, at, sampler = points(2, 1, seed=5), points(4, 2, 3, seed=6), SobolQMCNormalSampler(torch.Size([4]), seed=0)
        for one in (wrapped, plain):
            one.posterior(points(2))
        ours, theirs = (one.fantasize(x, sampler) for one in (wrapped, plain))
        torch.testing.assert_close(ours.posterior(at).mean, theirs.posterior(at).mean)


def test_bad_input():
    wrapped, _ = both(new_model())
    with pytest.raises(InputError, match=r"whose shapes before the last one go together.*\(2, 3, 3\).*\(4, 3, 1\)"):
        wrapped.condition_on_observations(points(2, 3), torch.zeros(4, 3, 1, dtype=torch.float64))
    fantasised = wrapped.fantasize(points(2), SobolQMCNormalSampler(torch.Size([2]), seed=0))
    with pytest.raises(UnsupportedModelError, match="Expected a model without fantasies"):
        fantasised.draw_paths(1)
