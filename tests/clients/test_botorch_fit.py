"""`fit_gpytorch_mll` trains an `rtgp.MarginalLogLikelihood` by `rtgp.fit`, and everything else as before."""

from __future__ import annotations

import subprocess
import sys
import time

import botorch.fit
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.utils.dispatcher import Dispatcher
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood

import rtgp
import rtgp.botorch
import zoo_models
from clients.botorch_cases import data, new_model
from rtgp.botorch import _fitting as fitting
from rtgp.errors import SettingError
from zoo_models import ZOO

# As in tests/training/test_zoo.py: what is said of data and precision is no failure.
pytestmark = [
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore::rtgp.errors.PrecisionWarning"),
]

SUPPORTED = [name for name, one in ZOO.items() if not one.refused]
QUICK = [name for name in SUPPORTED if ZOO[name].quick][::3]


@pytest.fixture
def calls(monkeypatch):
    """The calls of rtgp.fit."""
    found = []

    def noted(*arguments, **settings):
        found.append(settings)
        return rtgp.fit(*arguments, **settings)

    monkeypatch.setattr(fitting, "fit", noted)
    return found


def objective(model):
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    with torch.no_grad():
        return float(mll(model(*model.train_inputs), model.train_targets).mean())  # of a batch: the mean


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_it_goes_to_rtgp_and_reaches_botorchs_optimum(calls):
    models = [new_model(150) for _ in range(2)]
    mll = rtgp.MarginalLogLikelihood(models[0].likelihood, models[0], "rr-cg", generator())
    assert fit_gpytorch_mll(mll) is mll
    assert not mll.training
    assert not models[0].training
    assert len(calls) == 1
    fit_gpytorch_mll(ExactMarginalLogLikelihood(models[1].likelihood, models[1]))
    assert len(calls) == 1
    assert abs(objective(models[0]) - objective(models[1])) < 2e-3


def test_the_method_is_the_likelihoods_or_the_cheaper_one(calls):
    model = new_model(60)
    for method, expected in ((None, "auto"), ("cholesky", rtgp.Cholesky()), (rtgp.CG(), rtgp.CG())):
        fit_gpytorch_mll(rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator()))
        assert calls[-1]["method"] == expected


def test_the_generator_decides():
    found = []
    for _ in range(2):
        model = new_model(100)
        fit_gpytorch_mll(rtgp.MarginalLogLikelihood(model.likelihood, model, "rr-cg", generator(3)))
        found.append(model.covar_module.lengthscale.detach())
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "settings, how",
    [
        ({"draws": "frozen", "method": "cholesky"}, {}),
        ({"method": "cholesky"}, {"optimizer": fit_gpytorch_mll_scipy}),
        ({"method": "cholesky"}, {"closure_kwargs": {}}),
    ],
)
def test_who_asks_for_botorchs_routine_gets_it(calls, settings, how):
    model = new_model(40)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, **settings)
    fit_gpytorch_mll(mll, **how)
    assert not mll.training
    assert not calls


def test_a_list_of_models(calls):
    model = ModelListGP(new_model(40), new_model(50))
    mll = SumMarginalLogLikelihood(model.likelihood, model, mll_cls=rtgp.MarginalLogLikelihood)
    fit_gpytorch_mll(mll)
    assert len(calls) == 2
    assert not mll.training
    assert model.posterior(data(3)[0]).mean.shape == (3, 2)


def test_a_wrapped_model_is_trained(calls):
    model = rtgp.botorch.wrap(new_model(60), method="cg")
    fit_gpytorch_mll(rtgp.MarginalLogLikelihood(model.likelihood, model, generator=generator()))
    assert len(calls) == 1
    assert bool(torch.isfinite(model.posterior(data(3)[0]).mean).all())


def test_botorchs_options(calls):
    model = new_model(60)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, generator=generator())
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 50}, "tolerance": 1e-3})
    assert (calls[0]["steps"], calls[0]["tolerance"]) == (50, 1e-3)
    seen = []
    with pytest.warns(match="not converged"):
        fit_gpytorch_mll(mll, optimizer_kwargs={"timeout_sec": 0.0, "callback": lambda row, _: seen.append(row)})
    assert len(seen) == 1
    assert time.monotonic() > 0
    with pytest.raises(SettingError, match=r"options=\{'maxiter': ...\}, timeout_sec.*Got ftol, method instead"):
        fit_gpytorch_mll(mll, optimizer_kwargs={"method": "SLSQP", "options": {"ftol": 1e-3}})


def test_only_the_import_changes_botorch():
    code = (
        "import botorch.fit, rtgp; before = botorch.fit._fit_fallback; from botorch.fit import fit_gpytorch_mll;"
        "import rtgp.botorch, importlib; after = botorch.fit._fit_fallback;"
        "rtgp.botorch._fitting.register();"
        "print(hasattr(before, 'before_rtgp'), after.before_rtgp is before, botorch.fit._fit_fallback is after)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_a_botorch_with_a_registry(monkeypatch, calls):
    """Earlier versions dispatch by type; this is their clearing house."""
    registry = Dispatcher("fit_gpytorch_mll")
    fallback = getattr(botorch.fit._fit_fallback, "before_rtgp", botorch.fit._fit_fallback)
    own = []
    monkeypatch.setattr(botorch.fit, "_fit_fallback", lambda mll, *types, **how: own.append(mll))
    registry.register(ExactMarginalLogLikelihood.__mro__[1], object, object)(botorch.fit._fit_fallback)
    monkeypatch.setattr(botorch.fit, "FitGPyTorchMLL", registry, raising=False)
    fitting.register()
    fitting.register()
    model = new_model(40)
    ours = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
    theirs = ExactMarginalLogLikelihood(model.likelihood, model)
    for mll in (ours, theirs):
        registry(mll, type(mll.likelihood), type(mll.model), closure=None, optimizer_kwargs=None)
    assert len(calls) == 1
    assert own == [theirs]
    assert callable(fallback)


def trained(name):
    animal = zoo_models.build(name, 0)
    mll = rtgp.MarginalLogLikelihood(animal.likelihood, animal.model, "rr-cg", generator())
    before = objective(animal.model.train()) if isinstance(animal.model, SingleTaskGP) else None
    fit_gpytorch_mll(mll)
    assert not mll.training
    assert all(bool(torch.isfinite(p).all()) for p in animal.model.parameters())
    if before is not None:
        assert objective(animal.model.train()) > before - 0.01


@pytest.mark.parametrize("name", QUICK)
def test_some_of_the_zoo(name):
    trained(name)


@pytest.mark.slow
# BoTorch's relevance pursuit makes a number of a parameter, of which torch warns once in a process.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
@pytest.mark.parametrize("name", SUPPORTED)
def test_the_zoo(name):
    trained(name)


def test_an_input_transform_is_trained_too():
    from botorch.models.transforms.input import ChainedInputTransform, Warp

    X, Y = data(60)
    transform = ChainedInputTransform(norm=Normalize(3), warp=Warp(d=3, indices=[0]))
    model = SingleTaskGP(X, Y, input_transform=transform)
    before = transform["warp"].concentration0.clone()
    fit_gpytorch_mll(rtgp.MarginalLogLikelihood(model.likelihood, model, generator=generator()))
    assert not torch.equal(before, transform["warp"].concentration0)
