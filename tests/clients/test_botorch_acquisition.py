"""BoTorch's acquisition functions, optimisers and Thompson sampling on wrapped models."""

from __future__ import annotations

import botorch
import pytest
import torch
from botorch import acquisition
from botorch.acquisition.analytic import LogProbabilityOfImprovement
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.max_value_entropy_search import qMaxValueEntropy
from botorch.acquisition.multi_objective.logei import qLogExpectedHypervolumeImprovement
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelListGP
from botorch.models.deterministic import MatheronPathModel
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths, get_matheron_path_model
from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning

import rtgp.botorch
from clients.botorch_cases import BOUNDS, TIGHT, function, new_model, points
from posterior.test_sampling import LEVEL, largest_z
from rtgp.botorch._sampling import SolvedPaths
from rtgp.errors import UnsupportedModelError
from rtgp.posterior._paths import Paths

BEST = 40.0


@pytest.fixture(autouse=True)
def _random_numbers_as_they_were():
    """BoTorch draws from torch's default generator, which these tests seed."""
    with torch.random.fork_rng():
        yield


def sampler(count=16):
    return SobolQMCNormalSampler(torch.Size([count]), seed=0)


# Each of a model, and whether it takes several points.
FUNCTIONS = {
    "LogExpectedImprovement": (lambda m: acquisition.LogExpectedImprovement(m, BEST), 1),
    "ExpectedImprovement": (lambda m: acquisition.ExpectedImprovement(m, BEST), 1),
    "LogProbabilityOfImprovement": (lambda m: LogProbabilityOfImprovement(m, BEST), 1),
    "UpperConfidenceBound": (lambda m: acquisition.UpperConfidenceBound(m, beta=2.0), 1),
    "PosteriorMean": (acquisition.PosteriorMean, 1),
    "PosteriorStandardDeviation": (acquisition.PosteriorStandardDeviation, 1),
    "qLogExpectedImprovement": (lambda m: qLogExpectedImprovement(m, BEST, sampler()), 3),
    "qLogNoisyExpectedImprovement": (lambda m: qLogNoisyExpectedImprovement(m, points(9), sampler()), 3),
    "qUpperConfidenceBound": (lambda m: acquisition.qUpperConfidenceBound(m, 2.0, sampler()), 3),
    "qExpectedImprovement": (lambda m: acquisition.qExpectedImprovement(m, BEST, sampler()), 3),
    "qProbabilityOfImprovement": (lambda m: acquisition.qProbabilityOfImprovement(m, BEST, sampler(), tau=10.0), 3),
    "qSimpleRegret": (lambda m: acquisition.qSimpleRegret(m, sampler()), 3),
    "qNegIntegratedPosteriorVariance": (lambda m: acquisition.qNegIntegratedPosteriorVariance(m, points(20)), 2),
    "qKnowledgeGradient": (lambda m: acquisition.qKnowledgeGradient(m, 4, sampler(4)), 6),
}


@pytest.mark.filterwarnings("ignore:ExpectedImprovement has known:botorch.exceptions.warnings.NumericsWarning")
@pytest.mark.filterwarnings("ignore:q.* has known:botorch.exceptions.warnings.NumericsWarning")
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_values_and_gradients_are_botorchs(name):
    make, q = FUNCTIONS[name]
    model = new_model()
    model.posterior(points(1))
    x, found = points(2, q, seed=4), []
    for one in (rtgp.botorch.wrap(model, method="cg", tolerance=TIGHT), model):
        at = x.clone().requires_grad_(True)
        value = make(one)(at)
        slope = torch.autograd.grad(value.sum(), at)[0]
        # BoTorch's slope of a fantasised variance leaves out a part: tests/clients/test_botorch_conditioning.py.
        found.append((value.detach(), slope) if "Integrated" not in name else (value.detach(),))
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-4 * float(theirs.abs().max())


@pytest.mark.parametrize("name", ["LogExpectedImprovement", "UpperConfidenceBound", "qLogExpectedImprovement"])
def test_optimize_acqf_finds_botorchs_candidate(name):
    candidates(60, FUNCTIONS[name][0], min(FUNCTIONS[name][1], 2), restarts=2)


# All but those of one moment, and those of fantasies, where BoTorch's slope is not that of its value.
MAXIMISED = [name for name in FUNCTIONS if name[0] != "P" and name[1:4] not in ("Kno", "Neg")]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAXIMISED)
@pytest.mark.filterwarnings("ignore:.* has known:botorch.exceptions.warnings.NumericsWarning")
def test_optimize_acqf_finds_the_same_optimum_of_500_points(name):
    candidates(500, FUNCTIONS[name][0], min(FUNCTIONS[name][1], 2), restarts=4)


def candidates(n, make, q, restarts):
    model = new_model(n)
    values = []
    start = points(restarts, q, seed=3)
    for one in (rtgp.botorch.wrap(model, method="cg", tolerance=1e-6), model):
        function = make(one)
        best, _ = optimize_acqf(function, BOUNDS, q, restarts, batch_initial_conditions=start)
        values.append(make(model)(best[None]).detach())  # both by BoTorch's own model
    scale = float(make(model)(start).detach().std()) + 1e-6
    assert abs(float(values[0] - values[1])) < 1e-3 * scale


def test_entropy_search():
    """It makes a fantasy of a Cholesky factor of its own, and candidates' joint samples."""
    wrapped = rtgp.botorch.wrap(new_model(), method="cg")
    torch.manual_seed(0)
    value = qMaxValueEntropy(wrapped, points(30, seed=2), num_fantasies=4)(points(2, 1, seed=4))
    assert value.shape == (2,)
    assert bool(torch.isfinite(value).all())


@pytest.mark.slow
def test_two_objectives():
    models = ModelListGP(new_model(40), new_model(50))
    models.posterior(points(1))
    reference = torch.tensor([0.0, 0.0], dtype=torch.float64)
    cells = FastNondominatedPartitioning(reference, Y=torch.tensor([[50.0, 40.0], [40.0, 50.0]], dtype=torch.float64))
    wrapped, x = rtgp.botorch.wrap(models, method="cg", tolerance=TIGHT), points(2, 2, seed=4)
    ours, theirs = (
        qLogExpectedHypervolumeImprovement(one, reference, cells, sampler())(x).detach() for one in (wrapped, models)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


# Thompson sampling.


def test_paths_of_a_wrapped_model_are_ours_and_shaped_as_botorchs():
    model = new_model()
    wrapped = rtgp.botorch.wrap(model, method="cg")
    for shape in (torch.Size([]), torch.Size([4]), torch.Size([2, 3])):
        ours, theirs = (draw_matheron_paths(one, shape) for one in (wrapped, model))
        assert isinstance(ours.paths, Paths)
        for lead in ((), (5, *([1] * len(shape))), (5, *shape)):
            x = points(*lead, 7)
            assert ours(x).shape == theirs(x).shape
    few = rtgp.botorch.wrap(model)  # with a factor
    assert isinstance(draw_matheron_paths(few, torch.Size([4])).paths, Paths)


def test_paths_are_botorchs_where_ours_are_not_to_be_had():
    few = rtgp.botorch.wrap(new_model())
    few.posterior(points(2))
    fantasised = few.condition_on_observations(points(3, 2, seed=2), points(3, 2, seed=3)[..., :1])
    paths = draw_matheron_paths(fantasised, torch.Size([4, 1]))
    assert not isinstance(paths, SolvedPaths)
    assert paths(points(4, 3, 7)).shape == (4, 3, 7)
    many = rtgp.botorch.wrap(new_model(), method="cg")
    many = many.condition_on_observations(points(3, 2, seed=2), points(3, 2, seed=3)[..., :1])
    with pytest.raises(UnsupportedModelError, match="without fantasies"):
        draw_matheron_paths(many, torch.Size([4]))


def test_each_path_is_asked_at_its_own_points():
    wrapped = rtgp.botorch.wrap(new_model(), method="cg")
    paths = draw_matheron_paths(wrapped, torch.Size([2, 3]))
    x = points(5, 2, 3, 7)
    together = paths(x)
    for i in range(2):
        for j in range(3):
            alone = paths(x[:, i : i + 1, j : j + 1])[:, i, j]
            torch.testing.assert_close(together[:, i, j], alone, rtol=1e-9, atol=1e-9)


def test_moments_of_botorchs_path_model():
    """False alarm: 1e-6 for each comparison."""
    model = new_model()
    wrapped, x = rtgp.botorch.wrap(model, method="cg", tolerance=1e-6), points(6)
    torch.manual_seed(0)
    samples = torch.cat([get_matheron_path_model(wrapped, torch.Size([100]))(x)[:, :, 0].detach() for _ in range(30)])
    exact = model.posterior(x).distribution
    with torch.no_grad():
        assert largest_z(samples, exact.mean, exact.covariance_matrix) < LEVEL


def test_thompson_sampling_is_the_same_for_the_same_seed_and_finds_the_maximum():
    wrapped = rtgp.botorch.wrap(new_model(), method="cg")
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        paths = MatheronPathModel(wrapped, seed=3)
        best, value = optimize_acqf(acquisition.PosteriorMean(paths), BOUNDS, 1, 2, 32)
        found.append((best, value))
        assert bool(((best - 0.4).abs() < 0.25).all())
        assert float(value) > float(paths(points(200)).max()) - 0.5
    assert torch.equal(found[0][0], found[1][0])


def test_max_posterior_sampling():
    """At few points by their joint covariance, at many by paths, which take no matrix of their size."""
    wrapped = rtgp.botorch.wrap(new_model(), method="cg")
    torch.manual_seed(0)
    chosen = MaxPosteriorSampling(wrapped)(points(50), num_samples=5)
    assert chosen.shape == (5, 3)
    many = points(3_000)
    chosen = MaxPosteriorSampling(wrapped, replacement=False)(many, num_samples=8)
    assert chosen.shape == (8, 3)
    assert bool(((chosen - 0.4).abs() < 0.3).all())
    posterior = wrapped.posterior(many)
    assert posterior.mean.shape == posterior.variance.shape == (3_000, 1)
    assert posterior.rsample(torch.Size([2, 3])).shape == (2, 3, 3_000, 1)
    with pytest.raises(UnsupportedModelError, match="needs their joint covariance"):
        posterior.rsample_from_base_samples(torch.Size([2]), torch.zeros(2, 3_000, 1))


# BoTorch's root of a joint covariance of many near points.
@pytest.mark.filterwarnings("ignore:A not p.d.:linear_operator.utils.warnings.NumericalWarning")
def test_a_loop_of_optimisation():
    """Three rounds: train, choose by paths, observe, condition."""
    torch.manual_seed(0)
    model = rtgp.botorch.wrap(new_model(40), method="cg")
    for _ in range(3):
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, generator=torch.Generator().manual_seed(0))
        botorch.fit_gpytorch_mll(mll, optimizer_kwargs={"tolerance": 1e-2})
        new = MaxPosteriorSampling(model)(points(500), num_samples=4)
        model = model.condition_on_observations(new, function(new))
    assert model.train_inputs[0].shape == (52, 3)
    assert float(function(model._original_train_inputs[-4:]).max()) > 50.0
