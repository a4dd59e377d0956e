"""Bad input meets an RTGPError that says what was expected, what came and what to do, before any computation."""

from __future__ import annotations

import warnings

import gpytorch
import pytest
import torch
from gpytorch.constraints import GreaterThan, Positive
from gpytorch.kernels import LinearKernel, MultitaskKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    MultitaskGaussianLikelihood,
    StudentTLikelihood,
)
from gpytorch.likelihoods.hadamard_gaussian_likelihood import HadamardGaussianLikelihood
from linear_operator.utils.errors import NotPSDError

import rtgp
from gp_models import Model, airports, estimated, gradients, make
from rtgp._objectives import CholeskyObjective, KrylovObjective
from rtgp.errors import (
    InputError,
    NotPositiveDefiniteError,
    PrecisionWarning,
    RTGPError,
    SettingError,
    UnsupportedModelError,
)

N = 30
X, Y = airports(N)
BAD_NUMBERS = [float("nan"), float("inf"), -float("inf")]


@pytest.fixture(params=["cholesky", "cg", "rr-cg"])
def method(request, monkeypatch):
    """Every method; none of them may begin to compute."""

    def begun(*_):
        pytest.fail("the computation had begun")

    monkeypatch.setattr(CholeskyObjective, "__call__", begun)
    monkeypatch.setattr(KrylovObjective, "__call__", begun)
    return request.param


def refuse(error: type[RTGPError], words: str, call) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).endswith(".")


def attempt(mll, target):
    try:
        return estimated(mll, target)
    except RTGPError as error:
        return error


def assert_finite(value, found) -> None:
    assert bool(torch.isfinite(value))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in found.values())


def test_every_error_is_a_value_error():
    assert issubclass(RTGPError, ValueError)


class TestTargets:
    @pytest.mark.parametrize(
        "target, words",
        [
            (Y[:, None], r"shape \(30,\).*Got shape \(30, 1\): pass train_y.reshape\(-1\)"),
            (Y[:-1], r"shape \(30,\).*Got shape \(29,\): pass as many targets"),
            (torch.stack([Y, Y], 1), r"Got shape \(30, 2\)"),
            (Y.numpy(), r"torch.Tensor. Got ndarray instead: pass torch.as_tensor"),
            (Y.tolist(), "Got list instead"),
            (Y.long(), r"floating-point dtype. Got torch.int64: pass train_y.to"),
        ],
        ids=["column", "one short", "batch", "numpy", "list", "integers"],
    )
    def test_wrong_shape_or_type(self, method, target, words):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        refuse(InputError, words, lambda: mll(model(X), target))

    @pytest.mark.parametrize("bad", BAD_NUMBERS)
    def test_not_finite(self, method, bad):
        model, target = make(X, Y), Y.clone()
        target[7] = bad
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        words = r"finite targets.*first at row 7: drop those rows, or .*observation_nan_policy\('mask'\)"
        refuse(InputError, words, lambda: mll(model(X), target))


class TestInputs:
    @pytest.mark.parametrize("bad", BAD_NUMBERS)
    @pytest.mark.parametrize("kernel", [RBFKernel, PeriodicKernel, LinearKernel])
    def test_not_finite(self, kernel, bad):
        """When the objective is made: GPyTorch's own check of the inputs fails on NaN, with a misleading message."""
        x = X.clone()
        x[3, 1] = bad
        model = make(x, Y, kernel=ScaleKernel(kernel()))
        words = r"finite training inputs.*first at \[3, 1\]: drop those rows"
        refuse(InputError, words, lambda: rtgp.MarginalLogLikelihood(model.likelihood, model))

    def test_not_finite_later(self, method):
        model, x = make(X, Y), X.clone()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        x[3, 1] = float("inf")
        model.set_train_data(x, Y)
        refuse(InputError, "finite training inputs", lambda: mll(model(x), Y))

    @pytest.mark.parametrize("name", ["raw_outputscale", "base_kernel.raw_lengthscale"])
    def test_diverged_kernel_parameter(self, method, name):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        model.kernel.get_parameter(name).data.fill_(float("nan"))
        refuse(InputError, "diverged.*Lower the learning rate", lambda: mll(model(X), Y))

    def test_diverged_mean(self, method):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        model.mean_module.raw_constant.data.fill_(float("nan"))
        refuse(InputError, "finite prior mean.*diverged", lambda: mll(model(X), Y))

    def test_the_data_in_place_of_the_model_output(self, method):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        refuse(InputError, r"Got Tensor instead: call mll\(model\(train_x\), train_y\)", lambda: mll(X, Y))

    def test_eval_mode(self, method):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        model.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GPyTorch: evaluated at the training inputs
            posterior = model(X)
        refuse(InputError, r"eval mode.*call model.train\(\)", lambda: mll(posterior, Y))


class Multitask(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(X, torch.stack([Y, -Y], dim=1), likelihood)
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=2)
        self.kernel = MultitaskKernel(RBFKernel(), num_tasks=2)

    def forward(self, x):
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.kernel(x))


class TestModels:
    @pytest.mark.parametrize(
        "likelihood",
        [BernoulliLikelihood(), StudentTLikelihood()],
        ids=lambda likelihood: type(likelihood).__name__,
    )
    def test_likelihood_without_a_closed_form(self, likelihood):
        model = make(X, Y)
        words = f"GaussianLikelihood, FixedNoise.* Got {type(likelihood).__name__}: .*Use one of these"
        refuse(UnsupportedModelError, words, lambda: rtgp.MarginalLogLikelihood(likelihood, model))

    def test_arguments_in_the_wrong_order(self):
        model = make(X, Y)
        refuse(UnsupportedModelError, "Got Model", lambda: rtgp.MarginalLogLikelihood(model, model.likelihood))
        words = "ExactGP.* Got GaussianLikelihood instead: call .*in this order"
        refuse(UnsupportedModelError, words, lambda: rtgp.MarginalLogLikelihood(model.likelihood, model.likelihood))

    def test_multitask_with_the_noise_of_one_output(self, method):
        model = Multitask(GaussianLikelihood()).double().train()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        words = (
            r"Got GaussianLikelihood with MultitaskMultivariateNormal: take .*MultitaskGaussianLikelihood\(num_tasks\)"
        )
        refuse(UnsupportedModelError, words, lambda: mll(model(X), model.train_targets))

    def test_one_output_with_the_noise_of_several(self, method):
        model = make(X, Y, likelihood=MultitaskGaussianLikelihood(num_tasks=2))
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        words = r"Got MultitaskGaussianLikelihood with MultivariateNormal: take GaussianLikelihood\(\)"
        refuse(UnsupportedModelError, words, lambda: mll(model(X), Y))

    def test_noise_of_other_tasks(self, method):
        model = Multitask(MultitaskGaussianLikelihood(num_tasks=3)).double().train()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        words = "as many tasks in the likelihood as in the model's output, 2. Got num_tasks=3"
        refuse(InputError, words, lambda: mll(model(X), model.train_targets))

    @pytest.mark.parametrize("seed", range(20))  # in a third of these the eigenvalue of 0 comes out above it
    def test_noise_between_tasks_that_leaves_none_to_each(self, method, seed):
        likelihood = MultitaskGaussianLikelihood(num_tasks=2, rank=1, has_global_noise=False)
        factor = torch.randn(2, 1, generator=torch.Generator().manual_seed(seed))
        likelihood.initialize(task_noise_covar_factor=factor)
        model = Multitask(likelihood).double().train()
        mll = rtgp.MarginalLogLikelihood(likelihood, model, method)
        words = "full rank where there is no global noise.*has_global_noise=True, or rank=num_tasks"
        refuse(InputError, words, lambda: mll(model(X), model.train_targets))

    def test_shapes_of_a_batch(self, method):
        shape = torch.Size([2])
        kernel = ScaleKernel(RBFKernel(batch_shape=shape), batch_shape=shape)
        model = make(X.expand(2, N, 2), torch.stack([Y, -Y]), kernel=kernel)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        output = model(X.expand(2, N, 2))
        refuse(InputError, r"shape \(2, 30\), one for each", lambda: mll(output, torch.stack([Y, Y, Y])))

    def test_tasks_that_nobody_tells(self, method):
        x = torch.cat([X, X[:, :1]], 1)
        model = make(x, Y, likelihood=HadamardGaussianLikelihood(num_tasks=2))
        model.train_inputs = (x, X)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        words = r"one column of integers: pass the tasks, as in mll\(model\(\*train_inputs\), train_y, train_tasks\)"
        refuse(InputError, words, lambda: mll(model.forward(x), Y))

    def test_filled_targets(self, method):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        with gpytorch.settings.observation_nan_policy("fill"):
            refuse(InputError, r"observation_nan_policy\('mask'\).*Got 'fill'", lambda: mll(model(X), Y))

    def test_no_target_at_all(self, method):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        with gpytorch.settings.observation_nan_policy("mask"):
            refuse(InputError, "at least one target that is no NaN", lambda: mll(model(X), Y * torch.nan))

    def test_settings(self):
        model = make(X, Y)
        refuse(
            SettingError, "'fresh' or 'frozen'", lambda: rtgp.MarginalLogLikelihood(model.likelihood, model, draws="x")
        )
        refuse(SettingError, "'method'", lambda: rtgp.MarginalLogLikelihood(model.likelihood, model, "exact"))


class TestNoise:
    def test_zero(self, method):
        likelihood = GaussianLikelihood(noise_constraint=Positive())
        model = make(X, Y, likelihood=likelihood)
        mll = rtgp.MarginalLogLikelihood(likelihood, model, method)
        likelihood.raw_noise.data.fill_(-1e4)  # softplus underflows
        refuse(InputError, "positive and finite. Got values between 0 and 0: give every", lambda: mll(model(X), Y))

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_diverged(self, method, bad):
        model = make(X, Y)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method)
        model.likelihood.raw_noise.data.fill_(bad)
        refuse(InputError, "positive and finite", lambda: mll(model(X), Y))

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
    def test_fixed_noise_with_a_bad_entry(self, method, bad):
        noise = torch.full((N,), 0.1, dtype=torch.float64)
        likelihood = FixedNoiseGaussianLikelihood(noise)
        likelihood.noise_covar.noise[4] = bad
        model = make(X, Y, likelihood=likelihood)
        mll = rtgp.MarginalLogLikelihood(likelihood, model, method)
        refuse(InputError, "positive and finite", lambda: mll(model(X), Y))

    def test_fixed_noise_for_other_points(self, method):
        likelihood = FixedNoiseGaussianLikelihood(torch.full((N - 1,), 0.1, dtype=torch.float64))
        model = make(X, Y, likelihood=likelihood)
        mll = rtgp.MarginalLogLikelihood(likelihood, model, method)
        refuse(InputError, r"each of the 30 training points. Got shape \(29,\)", lambda: mll(model(X), Y))


@pytest.mark.filterwarnings("ignore::rtgp.errors.PrecisionWarning")
class TestNotPositiveDefinite:
    """Every point three times, different targets, noise 1e-12, float32: beyond what the precision can hold."""

    @staticmethod
    def model() -> Model:
        x, y = X[:10].repeat(3, 1).float(), Y.float()
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-13))
        model = Model(x, y, likelihood).train()
        likelihood.noise = 1e-12
        return model

    @pytest.mark.parametrize("draws", ["fresh", "frozen"])
    @pytest.mark.parametrize("method", ["cholesky", "rr-cg", rtgp.RRCG(preconditioner=None), rtgp.RRCG.paper()])
    def test_error_with_a_remedy_or_finite_gradients(self, method, draws):
        model = self.model()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(0), draws)
        outcome = attempt(mll, model.train_targets)
        if isinstance(outcome, RTGPError):
            assert "float64" in str(outcome)
            assert "noise" in str(outcome) or "jitter" in str(outcome)
            assert not gradients(model)
        else:
            assert_finite(*outcome)

    def test_float32_is_said_to_be_too_coarse(self):
        model = self.model()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cg", torch.Generator().manual_seed(0))
        with pytest.warns(PrecisionWarning, match="float64"):
            attempt(mll, model.train_targets)

    def test_cholesky_names_the_noise_that_helps(self):
        """Callers of GPyTorch know NotPSDError: BoTorch starts anew from another point when it comes."""
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-30))
        model = Model(X[:10].repeat(3, 1), Y, likelihood).double().train()
        model.likelihood.noise = torch.tensor(1e-20, dtype=torch.float64)  # float32 would go over to float64
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
        with pytest.raises(NotPositiveDefiniteError, match=r"multiply the noise variance by ([0-9.e+]+)") as caught:
            estimated(mll, model.train_targets)
        assert isinstance(caught.value, NotPSDError)
        factor = float(str(caught.value).split("multiply the noise variance by ")[1].split()[0])
        model.likelihood.noise = torch.tensor(1e-20 * factor, dtype=torch.float64)
        assert_finite(*estimated(mll, model.train_targets))

    def test_the_remedies_help(self):
        model = self.model().double()
        model.set_train_data(model.train_inputs[0].double(), model.train_targets.double())
        model.likelihood.noise = 1e-3
        for method in ("cholesky", "cg", "rr-cg"):
            mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(0))
            assert_finite(*estimated(mll, model.train_targets))
