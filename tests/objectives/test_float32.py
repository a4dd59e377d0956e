"""float32: where it serves, and that it says where it does not."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import gpytorch
import pytest
import torch

import rtgp
from gp_models import Model, airports
from models import Judged, Regression, gradient, real_training_data
from rtgp._kernels import read_kernel
from rtgp._objectives import krylov
from rtgp._objectives.krylov import KrylovObjective
from rtgp._precision import PrecisionLimits, PrecisionSettings, Reach
from rtgp._solvers import NoiseUnits
from rtgp.errors import PrecisionWarning, RTGPError
from rtgp.operators import DenseOperator

METHODS = {
    "automatic": rtgp.RRCG(),
    "cholesky": rtgp.Cholesky(),
    "rademacher": rtgp.RRCG(probe_kind="rademacher"),
    "plain CG": rtgp.CG(200, preconditioner=rtgp.PivotedCholesky(200)),
}


@pytest.mark.real_data
@pytest.mark.parametrize("noise, told", [(6e-4, "error"), (2.6e-4, "ignore")])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_mixed_precision_gradient_is_that_of_float64(real_data, method, noise, told):
    """Bike, n = 2000, the same draws in both precisions: within 1e-3 in norm. At the smaller noise rounding in products
    is just felt, and a PrecisionWarning may say so."""
    found = {}
    for dtype in (torch.float64, torch.float32):
        x, y = real_training_data("bike", 2000, real_data, dtype)
        model = Regression(x, y).set(lengthscale=3.0, outputscale=0.6, noise=noise)
        generator = torch.Generator().manual_seed(0)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=generator)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter(told, PrecisionWarning)
            found[dtype], _ = gradient(model, mll)
    difference = (found[torch.float32] - found[torch.float64]).norm() / found[torch.float64].norm()
    assert float(difference) < 1e-3


def ill_conditioned(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 2, generator=generator)
    x, y = x.to(dtype), torch.sin(6 * x[:, 0]).to(dtype)
    return Regression(x, y, noise_floor=1e-9).set(lengthscale=1.0, outputscale=1.0, noise=1e-7)


@pytest.mark.parametrize("method", [rtgp.RRCG(preconditioner=rtgp.PivotedCholesky(40)), "cholesky"], ids=str)
def test_beyond_the_limit_of_float32_it_works_in_float64(method):
    """From the first call on in which float32 cannot serve, with the same draws: the answer of a model in float64.

    (With twice the rank the last pivots are drawn where inputs in float32 are felt, and the draws are others.)"""
    found = []
    for dtype in (torch.float64, torch.float32):
        model = ill_conditioned(dtype).set(lengthscale=0.3, outputscale=1.0, noise=1e-5)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=torch.Generator().manual_seed(0))
        with nullcontext() if dtype == torch.float64 else pytest.warns(PrecisionWarning, match="in float64 from here"):
            found.append(gradient(model, mll)[0])
        assert mll.last.dtype == torch.float64
    # What is left is the inputs and parameters, given in float32.
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 1e-3


@pytest.mark.parametrize("method", ["cholesky", "rr-cg", "cg"])
def test_it_is_said_where_float64_is_too_coarse_as_well(method):
    """Once, as the first warning is; a model given in float64 has only the second to give."""
    for dtype, told in ((torch.float32, ["float32", "float64"]), (torch.float64, ["float64"])):
        model = ill_conditioned(dtype).set(lengthscale=0.3, outputscale=1e9, noise=1e-4)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=torch.Generator().manual_seed(0))
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            for _ in range(2):
                mll(model(*model.train_inputs), model.train_targets)
        words = [str(one.message) for one in caught if issubclass(one.category, PrecisionWarning)]
        assert [word.split(" is too coarse")[0] for word in words] == [f"torch.{name}" for name in told]
        assert "Raise the lower bound of the noise" in words[-1]


def test_the_first_call_in_float64_begins_where_float32_ended(monkeypatch):
    """Its y-solve starts from the last one, of which much is left to use."""
    runs, original = [], KrylovObjective._run
    monkeypatch.setattr(KrylovObjective, "_run", lambda *given: runs.append(original(*given)) or runs[-1])
    method = Judged(precision=PrecisionSettings(felt=0.0))  # of a kernel so rough nothing is
    model = ill_conditioned(torch.float32).set(lengthscale=0.02, outputscale=1.0, noise=2.5e-5)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=torch.Generator().manual_seed(0))
    gradient(model, mll)
    model.set(lengthscale=0.02, outputscale=1.0, noise=2.3e-5)
    with pytest.warns(PrecisionWarning, match="in float64 from here"):
        gradient(model, mll)
    assert [run.system.dtype for run in runs] == [torch.float32, torch.float64]
    assert float(runs[1].remainder.norm()) < 0.1 * float(runs[1].target.norm())


def smooth(dtype, signal, n=1500):
    """Points that are much alike to the kernel: products are sums of n large terms that cancel."""
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(n, generator=torch.Generator().manual_seed(1)).to(dtype)
    return Regression(x, y).set(lengthscale=0.7, outputscale=0.01 * signal, noise=0.01)


def test_where_products_are_felt_it_works_in_float64():
    """Rounding K is a fortieth of the noise, a product is off by a fifth of it: the value would be off by 0.02."""
    exact = smooth(torch.float64, 1e4)
    _, wanted = gradient(exact, rtgp.MarginalLogLikelihood(exact.likelihood, exact, "cholesky"))
    model = smooth(torch.float32, 1e4)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "rr-cg", generator=torch.Generator().manual_seed(0))
    with pytest.warns(PrecisionWarning, match="rounding in its products amounts to .* in float64 from here"):
        _, found = gradient(model, mll)
    assert PrecisionLimits.of(torch.full((1500,), 1e4), torch.float32).rounding < 0.03  # which alone would be no reason
    assert abs(float(found - wanted)) < 1e-3


@pytest.mark.parametrize("settings", [rtgp.RRCG(), rtgp.RRCG(preconditioner=None), rtgp.CG(100, refresh=1000)], ids=str)
@pytest.mark.parametrize("draws", ["fresh", "frozen"])
def test_products_are_looked_at_again_where_the_kernel_has_grown(settings, draws):
    """Also where the preconditioner stays, or there is none: once, and not before it matters."""
    model = smooth(torch.float32, 50.0, 300)
    generator = torch.Generator().manual_seed(0)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, settings, generator, draws=draws)
    for signal in (50.0, 55.0, 100.0):
        gradient(model.set(lengthscale=0.7, outputscale=0.01 * signal, noise=0.01), mll)
        assert mll.last.dtype == torch.float32
    model.set(lengthscale=0.7, outputscale=100.0, noise=0.01)
    with pytest.warns(PrecisionWarning, match="rounding in its products"):
        gradient(model, mll)
    assert mll.last.dtype == torch.float64


def test_products_of_a_kernel_without_a_form_in_float64():
    """It says so once, and goes on with what there is, made once."""
    model = smooth(torch.float32, 1e4, 300)
    model.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RQKernel())
    model.covar_module.base_kernel.lengthscale, model.covar_module.outputscale = 0.7, 100.0
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "rr-cg", generator=torch.Generator().manual_seed(0))
    with pytest.warns(PrecisionWarning, match=r"rounding in its products .* float64 \(model.double\(\)\)"):
        gradient(model, mll)
    assert mll.last.dtype == torch.float32
    assert mll.last.rebuilt
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient(model, mll)


@pytest.mark.parametrize("stop", [0, 2, 4])
def test_going_over_can_be_resumed(tmp_path, monkeypatch, stop):
    """Training that goes over to float64 in its third step, interrupted before or after: the same to the bit."""
    monkeypatch.setattr(krylov, "reach_of", lambda form, *_: Reach(form.size, torch.zeros(1).double(), 1.0))
    method = Judged(precision=PrecisionSettings(products=3e-4))
    run = {"method": method, "optimizer": "adam", "learning_rate": 1.0, "steps": 8, "subset_start": False}

    def trained(**more):
        model = smooth(torch.float32, 30.0, 300)
        rtgp.fit(model, model.likelihood, model.train_inputs[0], model.train_targets, **run, **more)
        return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])

    def interrupted():
        trained(checkpoint=tmp_path, callback=lambda row, _: row["step"] == stop)
        return trained(checkpoint=tmp_path)

    ends = []
    for way in (trained, interrupted):
        with pytest.warns(PrecisionWarning, match="products"):
            ends.append(way())
    assert torch.equal(*ends)


@pytest.mark.parametrize("signal", [100.0, 1e4])
def test_the_error_of_products_is_what_it_is(signal):
    """Of 64 rows, against that of all."""
    model = smooth(torch.float32, signal)
    form = read_kernel(model.covar_module, model.train_inputs[0])
    system = NoiseUnits(DenseOperator(form), model.likelihood.noise)
    v = torch.randn(system.size, 8, generator=torch.Generator().manual_seed(2))
    exact = system.kernel_rows(torch.arange(system.size)) @ v.double() + v.double()
    whole = float((system.matmul(v).double() - exact).square().mean().sqrt())
    assert system.product_error() == pytest.approx(whole, rel=0.5)


@pytest.mark.parametrize("method", ["cholesky"])
def test_beyond_the_limit_of_float32_it_says_so(method):
    """Rounding of K exceeds the noise, and its entries come in float32, from a kernel of GPyTorch's: a warning with
    a remedy, and then a right answer or an error, never NaN."""
    model = ill_conditioned(torch.float32)
    model.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RQKernel())
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=torch.Generator().manual_seed(0))
    outcomes = []

    def attempt():
        try:
            outcomes.append(gradient(model, mll))
        except RTGPError as error:
            outcomes.append(error)

    with pytest.warns(PrecisionWarning, match=r"float64 \(model.double\(\)\)"):
        attempt()
    if isinstance(outcomes[0], RTGPError):
        assert "float64" in str(outcomes[0])
    else:
        assert bool(torch.isfinite(outcomes[0][0]).all())


def test_float64_serves_the_same_system_without_a_word():
    model = ill_conditioned(torch.float64)
    exact, _ = gradient(model, rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky"))
    assert bool(torch.isfinite(exact).all())


def test_the_warning_comes_once():
    model = ill_conditioned(torch.float32).set(lengthscale=0.5, outputscale=1.0, noise=2e-6)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "rr-cg", generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradient(model, mll)
        gradient(model, mll)
    assert sum(issubclass(w.category, PrecisionWarning) for w in caught) == 1


@pytest.mark.parametrize("noise", [1e-4, 1e-6])
def test_a_rough_kernel_is_served_by_float32_at_any_noise(noise):
    """Airports with a Matern-1/2 kernel: rounding amounts to many times the noise, and hardly reaches a solution."""
    slopes, values = [], []
    x, y = airports(2000, dtype=torch.float32)
    for dtype in (torch.float32, torch.float64):
        kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=0.5))
        model = Model(x.to(dtype), y.to(dtype), gpytorch.likelihoods.GaussianLikelihood(), kernel=kernel).to(dtype)
        model.likelihood.noise_covar.register_constraint("raw_noise", gpytorch.constraints.GreaterThan(1e-8))
        model.initialize(
            **{"likelihood.noise": noise, "kernel.base_kernel.lengthscale": 2.0, "kernel.outputscale": 2.0}
        )
        model.train()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, generator=torch.Generator().manual_seed(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error", PrecisionWarning)
            for _ in range(2):  # the second call begins where the first ended
                slope, value = gradient(model, mll)
        assert mll.last.dtype is dtype
        slopes.append(slope.double())
        values.append(float(value))
    assert abs(values[0] - values[1]) < 1e-4
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=2e-4)
