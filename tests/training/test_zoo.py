"""Models as people build them train, by Cholesky and by `RRCG()` alike, or are refused with a sentence."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

import rtgp
import zoo_models
from zoo_check import CLOSE, compare
from zoo_models import ZOO

# What other libraries say of such data, and models at the limit of float64, are not the matter here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore::rtgp.errors.PrecisionWarning"),
]
KINDS = [pytest.param(name, marks=[] if kind.quick else [pytest.mark.slow]) for name, kind in ZOO.items()]
RISKIEST = (
    "spectral mixture",
    "periodic + rbf",
    "known noise",
    "intervals without a transform",
    "botorch, warped inputs",
    "botorch, additive saas",
)


def test_the_zoo_is_large() -> None:
    assert len(ZOO) >= 40
    assert sum(name.startswith("botorch") for name in ZOO) >= 20


@pytest.mark.parametrize("name", KINDS)
def test_both_ways_agree(name: str) -> None:
    outcome = compare(name, 0)
    assert bool(outcome.refused) == ZOO[name].refused, str(outcome)
    assert outcome.agree, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", RISKIEST)
def test_the_riskiest_agree_on_other_data(name: str, seed: int) -> None:
    outcome = compare(name, 100 + seed)
    assert not outcome.refused
    assert outcome.agree, str(outcome)


def _botorch(seed: int, n: int = 600) -> SingleTaskGP:
    X, y = zoo_models.data(seed, n)
    X, Y = X * torch.tensor([1.0, 50.0, 1e3, 0.1], dtype=torch.float64) + 3.0, 40.0 * y[:, None] + 500.0
    return SingleTaskGP(X, Y, input_transform=Normalize(4), outcome_transform=Standardize(1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_single_task_gp_with_transforms_trains_for_every_seed(seed: int) -> None:
    losses = []
    for method in (rtgp.Cholesky(), rtgp.RRCG()):
        model = _botorch(seed)
        result = rtgp.fit(model, model.likelihood, model.train_inputs[0], model.train_targets, method)
        assert result.status.value == "converged"
        model.train()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
        losses.append(-float(mll(model(model.train_inputs[0]), model.train_targets).detach()))
    assert losses[1] - losses[0] <= CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("botorch", [False, True])
@pytest.mark.parametrize("n", [210, 600])
@pytest.mark.parametrize("seed", [0, 1, 2, 104, 105, 200, 201, 202])
def test_known_noise_does_not_end_at_a_lengthscale_of_nothing(seed: int, n: int, botorch: bool) -> None:
    """The loss at the start is so high that it falls all the way to K = I along the first gradient."""
    X, y = zoo_models.data(seed, n)
    noise = torch.full((n,), 0.01, dtype=torch.float64)
    if botorch:
        kernel = ScaleKernel(RBFKernel())
        model = SingleTaskGP(X, y[:, None], noise[:, None], covar_module=kernel, outcome_transform=None)
    else:
        model = zoo_models.Exact(X, y, ScaleKernel(RBFKernel()), FixedNoiseGaussianLikelihood(noise))
    result = rtgp.fit(model, model.likelihood, X, y, rtgp.RRCG())
    assert result.loss < 0.5  # 0.5 log(2 pi e) = 1.42 where every point stands alone
    assert math.isfinite(result.loss)


def test_the_warning_that_a_training_has_not_converged_is_the_only_one() -> None:
    """Warnings of BoTorch or GPyTorch are not provoked by how a model is read."""
    model = _botorch(0, 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rtgp.fit(model, model.likelihood, model.train_inputs[0], model.train_targets, rtgp.Cholesky())


def test_adam_comes_back_where_it_has_left_a_valley() -> None:
    """A step size of 0.1 is too much for the weights of a network: without going back it ends at .57, after .32."""
    animal = zoo_models.build("deep kernel", 1)
    result = rtgp.fit(animal.model, animal.likelihood, animal.X, animal.y, rtgp.RRCG())
    assert result.optimizer == "adam"
    losses = [float(loss) for loss in result.history.column("loss")]
    assert result.loss < min(losses) + 0.1
