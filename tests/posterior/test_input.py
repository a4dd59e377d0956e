"""Small and odd inputs, bad inputs, noise, staleness, and that the model is left alone."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, FixedNoiseGaussianLikelihood

from gp_models import airports, make
from posterior.cases import N, case, each_relative, gpytorch_prediction, relative
from rtgp.errors import InputError, SettingError, UnsupportedModelError
from rtgp.posterior import _cache as cache
from rtgp.posterior import _predict as predict
from rtgp.posterior import _settings as settings
from rtgp.posterior import posterior

METHODS = ["cholesky", "cg"]


def assert_agrees(model, x, **settings):
    found = posterior(model, model.likelihood, **settings)
    expected, covariance = gpytorch_prediction(model, x if x.ndim == 2 else x[:, None])
    assert relative(found.mean(x), expected) < 1e-4
    assert each_relative(found.variance(x), covariance.diagonal()) < 1e-4
    assert relative(found.covariance(x), covariance) < 1e-4


@pytest.mark.parametrize("method", METHODS)
class TestOddShapes:
    def test_one_dimension(self, method):
        x, y = airports(50)
        model = make(x[:, 0], y, kernel=ScaleKernel(RBFKernel()))
        assert_agrees(model, x[:7, 0] + 0.1, method=method)
        assert_agrees(model, x[:7, :1] + 0.1, method=method)

    def test_one_new_point(self, method):
        model, x = case("rbf-ard")
        assert_agrees(model, x[:1], method=method)

    def test_one_training_point(self, method):
        x, y = airports(5)
        assert_agrees(make(x[:1], y[:1]), x, method=method)
        assert_agrees(make(x[:1], y[:1]), x, method=method, variance="lanczos")

    def test_duplicates(self, method):
        x, y = airports(40)
        assert_agrees(make(x.repeat(3, 1), y.repeat(3)), x.repeat(2, 1)[:60], method=method)

    def test_far_from_the_data(self, method):
        model, x = case("rbf-ard")
        found = posterior(model, model.likelihood, method=method)
        assert torch.allclose(found.variance(x + 1e6), model.kernel.outputscale.detach())
        assert torch.allclose(found.mean(x + 1e6), model.mean_module.constant.detach())

    def test_targets_equal_to_the_mean(self, method):
        model, x = case("rbf-ard")
        model.set_train_data(targets=model.mean_module(model.train_inputs[0]).detach())
        found = posterior(model, model.likelihood, method=method)
        assert torch.equal(found.mean(x), model.mean_module.constant.detach().expand(x.shape[0]))

    def test_other_dtypes_of_the_new_points(self, method):
        model, x = case("rbf-ard", torch.float32)
        found = posterior(model, model.likelihood, method=method)
        assert found.mean(x.double()).dtype == torch.float32
        assert torch.equal(found.mean(x.double()), found.mean(x))
        assert found.mean(torch.zeros(3, 2, dtype=torch.int64)).shape == (3,)


class TestNoise:
    def test_homoskedastic(self):
        model, x = case("rbf-ard")
        found = posterior(model, model.likelihood)
        noise = model.likelihood.noise.item()
        assert torch.allclose(found.variance(x, include_noise=True), found.variance(x) + noise)
        with_noise, without = found.covariance(x, include_noise=True), found.covariance(x)
        assert torch.allclose(with_noise, without + noise * torch.eye(x.shape[0], dtype=x.dtype))
        with pytest.raises(InputError, match="Leave it out"):
            found.variance(x, include_noise=True, noise=0.1)

    def test_known_noise_is_asked_for(self):
        model, x = case("fixed-noise")
        found = posterior(model, model.likelihood)
        given = torch.rand(x.shape[0], generator=torch.Generator().manual_seed(0), dtype=x.dtype)
        assert torch.allclose(found.variance(x, include_noise=True, noise=given), found.variance(x) + given)
        assert torch.allclose(found.covariance(x, True, noise=0.5).diagonal(), found.covariance(x).diagonal() + 0.5)
        with pytest.raises(InputError, match="Pass theirs"):
            found.variance(x, include_noise=True)
        with pytest.raises(SettingError, match="include_noise=True"):
            found.variance(x, noise=given)
        for bad in (given[:-1], -given, float("nan")):
            with pytest.raises(InputError, match="none negative"):
                found.variance(x, include_noise=True, noise=bad)

    def test_learned_noise_over_known_noise(self):
        x, y = airports(50)
        known = torch.full((50,), 0.05, dtype=x.dtype)
        model = make(x, y, likelihood=FixedNoiseGaussianLikelihood(known, learn_additional_noise=True))
        assert_agrees(model, x[:10])
        found = posterior(model, model.likelihood)
        extra = found.variance(x, include_noise=True, noise=0.25) - found.variance(x)
        assert torch.allclose(extra, 0.25 + model.likelihood.second_noise.detach())


class TestChanges:
    @pytest.mark.parametrize("method", METHODS)
    def test_the_posterior_follows_its_model(self, method):
        model, x = case("rbf-ard")
        found = posterior(model, model.likelihood, method=method)

        def step():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            (model.kernel.base_kernel.lengthscale.sum() + model.likelihood.noise.sum()).backward()
            optimizer.step()

        def assign():
            model.kernel.base_kernel.lengthscale = 0.7  # through .data: no version counter moves

        def noise():
            model.likelihood.noise = 0.4

        def data():
            model.set_train_data(model.train_inputs[0][:-9] * 0.9, model.train_targets[:-9] + 1.0, strict=False)

        for change in (step, assign, noise, data):
            before = found.mean(x)
            change()
            expected, covariance = gpytorch_prediction(model, x)
            assert relative(before, expected) > 1e-3, change
            assert relative(found.mean(x), expected) < 1e-4, change
            assert each_relative(found.variance(x), covariance.diagonal()) < 1e-4, change

    def test_known_noise(self):
        model, x = case("fixed-noise")
        found = posterior(model, model.likelihood)
        model.likelihood.noise = torch.full((N,), 0.7, dtype=x.dtype)
        assert relative(found.mean(x), gpytorch_prediction(model, x)[0]) < 1e-4

    def test_nothing_is_computed_twice_for_an_unchanged_model(self, monkeypatch):
        model, x = case("deep")
        found = posterior(model, model.likelihood)
        monkeypatch.setattr(predict, "make_cache", lambda *_, **__: pytest.fail("computed again"))
        for _ in range(2):
            found.mean(x), found.variance(x), found.sample(x, 1), found.report

    def test_the_model_is_left_alone(self):
        model, x = case("deep")
        for training in (True, False):
            model.train(training)
            model.features[2].train()  # one module's own mode
            before = {name: t.clone() for name, t in model.state_dict().items()}
            modes = [module.training for module in model.modules()]
            found = posterior(model, model.likelihood)
            mean = found.mean(x)
            found.covariance(x)
            assert not mean.requires_grad
            assert [module.training for module in model.modules()] == modes
            assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
        with torch.inference_mode():
            assert torch.equal(posterior(model, model.likelihood).mean(x), mean)

    def test_a_model_that_has_predicted_by_itself_can_be_read_in_float64(self):
        x, y = airports(60, dtype=torch.float32)
        model = make(x, y)
        model.likelihood.noise = 1e-3
        model.eval()
        model(x[:3])  # with its autograd history in GPyTorch's caches
        found = posterior(model, model.likelihood)
        assert found.report.dtype == torch.float64
        assert relative(found.mean(x), gpytorch_prediction(make_copy(model), x)[0]) < 1e-4


def make_copy(model):
    model.train()  # clears what cannot be copied
    return model


class TestBadInput:
    @pytest.mark.parametrize(
        "change, words",
        [
            (lambda x: x[:, :1], r"shape \(m, 2\).*Got \(45, 1\)"),
            (lambda x: torch.cat([x, x], 1), r"shape \(m, 2\).*Got \(45, 4\)"),
            (lambda x: x[0], r"pass X\[None, :\] for one point"),
            (lambda x: x[None, :, :1], r"Got \(1, 45, 1\)"),
            (lambda x: x[:0], r"empty tensor of shape \(0, 2\)"),
            (lambda x: x.numpy(), r"torch.Tensor. Got ndarray"),
            (lambda x: x.index_put((torch.tensor(4), torch.tensor(1)), x.new_tensor(float("nan"))), r"row 4, column 1"),
            (lambda x: x.index_put((torch.tensor(9), torch.tensor(0)), x.new_tensor(float("inf"))), r"row 9, column 0"),
        ],
    )
    @pytest.mark.parametrize("call", ["mean", "variance", "covariance", "sample"])
    def test_new_points(self, call, change, words):
        model, x = case("rbf-ard")
        found = posterior(model, model.likelihood)
        arguments = (2,) if call == "sample" else ()
        with pytest.raises(InputError, match=words):
            getattr(found, call)(change(x), *arguments)

    @pytest.mark.parametrize(
        "settings",
        [
            {"method": "svgp"},
            {"variance": "fast"},
            {"tolerance": 0.0},
            {"tolerance": 2.0},
            {"tolerance": "small"},
            {"variance": "lanczos", "rank": 0},
            {"variance": "lanczos", "rank": 2.5},
            {"seed": -1},
        ],
    )
    def test_settings(self, settings):
        model, _ = case("rbf-ard")
        with pytest.raises(SettingError, match=f"'{list(settings)[-1]}' parameter of posterior"):
            posterior(model, model.likelihood, **settings)

    def test_models(self):
        model, _ = case("rbf-ard")
        with pytest.raises(UnsupportedModelError, match="BernoulliLikelihood"):
            posterior(model, BernoulliLikelihood())
        with pytest.raises(UnsupportedModelError, match="in this order"):
            posterior(model.likelihood, model)
        with pytest.raises(UnsupportedModelError, match="holds its training data"):
            posterior(torch.nn.Linear(1, 1), model.likelihood)
        with pytest.raises(InputError, match="with training data"):
            posterior(make_without_data(), gpytorch.likelihoods.GaussianLikelihood())

    def test_training_data(self):
        model, _ = case("rbf-ard")
        model.train_targets[3] = float("nan")
        with pytest.raises(InputError, match="nan at row 3"):
            posterior(model, model.likelihood)
        model, _ = case("rbf-ard")
        model.train_inputs[0][2, 1] = float("inf")
        with pytest.raises(InputError, match="inf at row 2, column 1"):
            posterior(model, model.likelihood)

    def test_a_diverged_parameter(self):
        model, x = case("rbf-ard")
        found = posterior(model, model.likelihood)
        with torch.no_grad():
            model.kernel.base_kernel.raw_lengthscale.fill_(float("nan"))
        with pytest.raises(InputError, match="has diverged"):
            found.mean(x)


def make_without_data():
    class Empty(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(None, None, gpytorch.likelihoods.GaussianLikelihood())

    return Empty()


def test_auto_says_what_it_chose():
    model, _ = case("rbf-ard")
    report = posterior(model, model.likelihood).report
    assert (report.method, report.iterations, report.variance) == ("cholesky", 0, "exact")
    assert report.reason == "n = 120, and Cholesky is used up to n = 8,000 on cpu"
    assert posterior(model, model.likelihood, method="cg").report.reason == "asked for"


def test_auto_takes_cg_where_two_matrices_do_not_fit(monkeypatch):
    model, x = case("rbf-ard")
    exact = posterior(model, model.likelihood).variance(x)
    monkeypatch.setattr(settings, "free_memory", lambda device: 2 * 8 * 120**2)
    found = posterior(model, model.likelihood)
    assert found.report.method == "cg"
    assert "Cholesky needs" in found.report.reason
    assert relative(found.variance(x), exact) < 1e-4
    # Ranks find different amounts of it, and must do the same.
    spread = settings.PosteriorSettings(operator="sharded")
    assert spread.choose(120, torch.device("cpu"))[0] == "cholesky"


def test_auto_takes_cg_where_somebody_else_took_the_memory(monkeypatch):
    def fail(system):
        raise torch.OutOfMemoryError("CUDA out of memory")

    model, x = case("rbf-ard")
    exact = posterior(model, model.likelihood).variance(x)
    monkeypatch.setattr(cache, "CholeskySolver", fail)
    found = posterior(model, model.likelihood)
    assert relative(found.variance(x), exact) < 1e-4
    assert (found.report.method, "not to be had" in found.report.reason) == ("cg", True)
    with pytest.raises(torch.OutOfMemoryError):
        posterior(model, model.likelihood, method="cholesky").mean(x)


def test_botorch_model_with_an_input_transform():
    x, y = airports(60)
    x, y = 3.0 + 5.0 * x, (y - y[:50].mean()) / y[:50].std()
    model = SingleTaskGP(x[:50], y[:50, None], outcome_transform=None, input_transform=Normalize(2))
    for training in (True, False):
        model.train(training)
        held = model.train_inputs[0].clone()
        found = posterior(model, model.likelihood)
        mean, variance = found.mean(x[50:]), found.variance(x[50:])
        assert torch.equal(model.train_inputs[0], held)
        expected = model.posterior(x[50:])  # leaves the model in eval mode
        assert relative(mean, expected.mean[:, 0].detach()) < 1e-4
        assert each_relative(variance, expected.variance[:, 0].detach()) < 1e-4
