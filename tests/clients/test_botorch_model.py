"""`rtgp.botorch.wrap`: BoTorch's posterior by our solver, in BoTorch's units, and no n x n factor."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from botorch.models import MixedSingleTaskGP, ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.approximate_gp import SingleTaskVariationalGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Bilog, ChainedOutcomeTransform, Log, Normalize, Standardize
from botorch.models.transforms.input import ChainedInputTransform, InputPerturbation, Warp
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.likelihoods import StudentTLikelihood

import rtgp.botorch
from clients.botorch_cases import TIGHT, data, new_model, points, watched
from rtgp.errors import InputError, UnsupportedModelError

# BoTorch's advice on data that are not scaled.
pytestmark = pytest.mark.filterwarnings("ignore:Data .*:botorch.exceptions.warnings.InputDataWarning")

INPUTS = {
    "none": lambda: None,
    "normalize": lambda: Normalize(3),
    "warp": lambda: ChainedInputTransform(norm=Normalize(3), warp=Warp(d=3, indices=[0, 2])),
    "perturbation": lambda: InputPerturbation(torch.tensor([[0.0] * 3, [0.01] * 3], dtype=torch.float64)),
}
OUTCOMES = {
    "none": lambda: None,
    "standardize": lambda: Standardize(1),
    "log": Log,
    "bilog": Bilog,
    "log, standardize": lambda: ChainedOutcomeTransform(a=Log(), b=Standardize(1)),
}
SHAPES = [(4,), (5, 1), (2, 3), (2, 1, 3)]


def transformed(inputs, outcome):
    X, Y = data(50)
    Y = Y / 50.0 if outcome in ("none", "bilog") else (Y / 50.0).exp()
    model = SingleTaskGP(X, Y, input_transform=INPUTS[inputs](), outcome_transform=OUTCOMES[outcome]())
    model.covar_module.lengthscale = 0.6
    model.likelihood.noise = 1e-2
    return model


def compare(ours, theirs, x, linear):
    for name in ("mean", "variance"):
        try:
            wanted = getattr(theirs, name)
        except NotImplementedError:  # BoTorch knows no moment of Bilog
            with pytest.raises(NotImplementedError):
                getattr(ours, name)
            continue
        found = getattr(ours, name)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
        slopes = [torch.autograd.grad(v.sum(), x, retain_graph=True)[0].detach() for v in (found, wanted)]
        assert float((slopes[0] - slopes[1]).abs().max() / slopes[1].abs().max().clamp_min(1e-12)) < 1e-5
    if linear:
        torch.testing.assert_close(
            ours.distribution.covariance_matrix, theirs.distribution.covariance_matrix, rtol=1e-6, atol=1e-8
        )
    samples = [SobolQMCNormalSampler(torch.Size([3]), seed=0)(one) for one in (ours, theirs)]
    assert samples[0].shape == samples[1].shape
    largest = float(samples[1].detach().abs().max())
    torch.testing.assert_close(samples[0], samples[1], rtol=1e-3, atol=1e-3 * largest)


@pytest.mark.parametrize("outcome", list(OUTCOMES))
@pytest.mark.parametrize("inputs", list(INPUTS))
def test_the_posterior_is_botorchs(inputs, outcome):
    model = transformed(inputs, outcome)
    wrapped = rtgp.botorch.wrap(model, method="cg", tolerance=TIGHT)
    assert isinstance(wrapped, SingleTaskGP)
    x = points(2, 3).requires_grad_(True)
    for noisy in (False, True):
        ours, theirs = (one.posterior(x, observation_noise=noisy) for one in (wrapped, model))
        compare(ours, theirs, x, linear=outcome in ("none", "standardize"))
    assert wrapped.solver.report.method == "cg"


@pytest.mark.parametrize("shape", SHAPES)
def test_all_batch_shapes(shape):
    model = new_model()
    x = points(*shape).requires_grad_(True)
    compare(rtgp.botorch.wrap(model, method="cg", tolerance=TIGHT).posterior(x), model.posterior(x), x, linear=True)


def test_known_noise_and_mixed_inputs():
    X, Y = data(50)
    known = SingleTaskGP(X, Y, torch.linspace(0.1, 2.0, 50, dtype=torch.float64)[:, None], input_transform=Normalize(3))
    mixed = MixedSingleTaskGP(torch.cat([X[:, :2], (3 * X[:, 2:]).floor()], 1), Y, cat_dims=[2])
    for model in (known, mixed):
        x = points(2, 3)
        x = torch.cat([x[..., :2], (3 * x[..., 2:]).floor()], -1) if model is mixed else x
        x.requires_grad_(True)
        ours, theirs = (one.posterior(x) for one in (rtgp.botorch.wrap(model, method="cg", tolerance=TIGHT), model))
        compare(ours, theirs, x, linear=True)
    noise = torch.full((2, 3, 1), 0.7, dtype=torch.float64)
    x = points(2, 3)
    ours, theirs = (m.posterior(x, observation_noise=noise) for m in (rtgp.botorch.wrap(known, method="cg"), known))
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-4, atol=1e-6)


def test_few_points_are_botorchs_own():
    model = new_model()
    wrapped, x = rtgp.botorch.wrap(model), points(2, 3)
    assert not wrapped.by_solver
    assert torch.equal(wrapped.posterior(x).mean, model.posterior(x).mean)
    assert wrapped.prediction_strategy is not None
    assert wrapped._held is None


def test_no_factor_and_nothing_of_its_size():
    """Beyond Cholesky; the operator in tiles stores not even K. BoTorch's own model is what the watch would find."""
    n = 700
    model = new_model(n)
    x = points(4, 2).requires_grad_(True)
    with watched(n) as watch:
        wrapped = rtgp.botorch.wrap(model, method="cg", operator="tiled")
        posterior = wrapped.posterior(x, observation_noise=True)
        (posterior.mean.sum() + posterior.rsample(torch.Size([2])).sum()).backward()
        wrapped.draw_paths(3, torch.Generator().manual_seed(0), features=100)(x).sum().backward()
        further = wrapped.condition_on_observations(points(2), torch.ones(2, 1, dtype=torch.float64))
        further.posterior(x).variance.sum().backward()
        fantasised = wrapped.fantasize(points(3, 1), SobolQMCNormalSampler(torch.Size([2]), seed=0))
        assert fantasised.posterior(points(3, 1)).variance.shape == (2, 3, 1, 1)
    assert not watch.factors
    assert not watch.large
    with watched(n) as watch:
        rtgp.botorch.wrap(model, method="cg").posterior(x).variance.sum().backward()
    assert not watch.factors  # K is stored here, where there is memory
    with watched(n) as watch:
        model.posterior(x).variance.sum().backward()
    assert watch.factors
    assert watch.large


def test_it_follows_the_model():
    model = new_model()
    wrapped, x = rtgp.botorch.wrap(model, method="cg", tolerance=TIGHT), points(2, 3)
    before = wrapped.posterior(x).mean
    with torch.no_grad():
        model.covar_module.lengthscale = 0.3
    assert not torch.allclose(wrapped.posterior(x).mean, before)
    model.train()  # GPyTorch's own cache goes stale
    torch.testing.assert_close(wrapped.posterior(x).mean, model.posterior(x).mean, rtol=1e-6, atol=1e-8)
    X, Y = data(40, seed=7)
    wrapped.set_train_data(X, Y[:, 0] / 20.0, strict=False)
    assert wrapped.solver.model.train_inputs[0] is wrapped.train_inputs[0]
    assert model.train_inputs[0].shape[0] == 60


def test_copies_and_files():
    wrapped, x = rtgp.botorch.wrap(new_model(), method="cg"), points(2, 3)
    expected = wrapped.posterior(x).mean
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert type(other) is type(wrapped)
        assert other._held is None
        torch.testing.assert_close(other.posterior(x).mean, expected)
    other = rtgp.botorch.wrap(new_model())
    other.load_state_dict(wrapped.state_dict())
    again = rtgp.botorch.wrap(wrapped, method="cholesky")
    assert not again.by_solver
    torch.testing.assert_close(again.posterior(x).mean, expected, rtol=1e-3, atol=1e-3)


def test_a_list_of_models():
    models = [new_model(40), new_model(50)]
    plain, wrapped = ModelListGP(*models), rtgp.botorch.wrap(ModelListGP(*models), method="cg", tolerance=TIGHT)
    x = points(2, 3)
    ours, theirs = wrapped.posterior(x), plain.posterior(x)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-6, atol=1e-8)
    assert all(one.by_solver for one in wrapped.models)


def test_a_model_of_our_own():
    X, Y = data(50)
    model = rtgp.botorch.SingleTaskGP(X, Y, input_transform=Normalize(3))
    plain = SingleTaskGP(X, Y, input_transform=Normalize(3))
    x = points(2, 3)
    torch.testing.assert_close(model.posterior(x).mean, plain.posterior(x).mean)
    by_solver = rtgp.botorch.wrap(model, method="cg", tolerance=TIGHT)
    assert type(by_solver) is type(model)
    torch.testing.assert_close(by_solver.posterior(x).mean, plain.posterior(x).mean, rtol=1e-6, atol=1e-8)
    with pytest.raises(UnsupportedModelError, match=r"train_Y of shape \(n, 1\).*Got \(50, 3\) and \(50, 2\)"):
        rtgp.botorch.SingleTaskGP(X, Y.expand(50, 2))


class SampledGP(SingleTaskGP):
    """What BoTorch says of its fully Bayesian models, which need packages of their own."""

    _is_fully_bayesian = True


def with_likelihood(model, likelihood):
    model.likelihood = likelihood
    return model


X, Y = data(20)
TASK = torch.cat([X, (torch.arange(20) % 2).to(X)[:, None]], 1)
REFUSED = {
    "SingleTaskGP with 2 outputs.*batched_to_model_list": lambda: SingleTaskGP(X, Y.expand(20, 2) + X[:, :2]),
    r"SingleTaskGP of batch shape \(2,\)": lambda: SingleTaskGP(X.expand(2, 20, 3), Y.expand(2, 20, 1)),
    "SampledGP, which is a batch of models": lambda: SampledGP(X, Y),
    "EnsembleMapSaasSingleTaskGP, which is a batch of models": lambda: EnsembleMapSaasSingleTaskGP(X, Y),
    "Got StudentTLikelihood": lambda: with_likelihood(SingleTaskGP(X, Y), StudentTLikelihood()),
    "MultiTaskGP with 2 outputs": lambda: MultiTaskGP(TASK, Y, task_feature=-1),
    "Got SingleTaskVariationalGP: use it": lambda: SingleTaskVariationalGP(X, Y, inducing_points=4),
    "Got GenericDeterministicModel: use it": lambda: GenericDeterministicModel(lambda x: x),
}


@pytest.mark.parametrize("words", list(REFUSED))
def test_what_is_refused_is_named(words):
    with pytest.raises(UnsupportedModelError, match=words):
        rtgp.botorch.wrap(REFUSED[words]())


def test_points_that_do_not_fit():
    wrapped = rtgp.botorch.wrap(new_model(input_transform=None), method="cg")
    with pytest.raises(InputError, match=r"shape \(m, 3\).*Got \(4, 2\)"):
        wrapped.posterior(points(4)[..., :2])
