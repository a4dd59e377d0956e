"""Training finds the optimum, in place, by whatever optimiser is asked for."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.priors import GammaPrior
from scipy.optimize import minimize

import rtgp
from gp_models import airports, exact, make
from rtgp.errors import NotPositiveDefiniteError
from rtgp.training import ConvergenceWarning, FitStatus, choose_method, fit
from rtgp.training._problem import Problem


def reference_optimum(model, X, y) -> float:
    """The lowest negative log marginal likelihood per point, by SciPy and GPyTorch's own objective."""
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model.train())
    parameters = list(model.parameters())

    def objective(x):
        torch.nn.utils.vector_to_parameters(torch.tensor(x), parameters)
        model.zero_grad()
        with gpytorch.settings.fast_computations(False, False, False):
            loss = -mll(model(X), y)
        loss.backward()
        return float(loss.detach()), torch.cat([p.grad.reshape(-1) for p in parameters]).numpy()

    start = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().astype(np.float64)
    return float(minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-6}).fun)


class TestOptimum:
    def test_lbfgs_finds_that_of_scipy(self, problem):
        model, likelihood, X, y = problem()
        wanted = reference_optimum(make(X, y), X, y)
        result = fit(model, likelihood, X, y, "cholesky")
        assert result.loss == pytest.approx(wanted, abs=1e-6)
        assert result.loss_error == 0.0
        assert result.status is FitStatus.CONVERGED
        assert "L-BFGS" in result.message

    def test_priors_are_in_the_objective_and_not_in_the_loss(self, problem):
        parts = {"likelihood": GaussianLikelihood(noise_prior=GammaPrior(20.0, 20.0))}
        model, likelihood, X, y = problem(**parts)
        wanted = reference_optimum(make(X, y, likelihood=GaussianLikelihood(noise_prior=GammaPrior(20.0, 20.0))), X, y)
        result = fit(model, likelihood, X, y, "cholesky")
        assert -float(exact(model.train(), y)[0]) == pytest.approx(wanted, abs=1e-6)
        mll = rtgp.MarginalLogLikelihood(likelihood, model, "cholesky")
        mll(model(X), y)
        value = 0.5 * (mll.last.log_det + mll.last.quadratic + len(y) * np.log(2 * np.pi)) / len(y)
        assert result.loss == pytest.approx(value, abs=1e-9)

    @pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
    def test_rr_cg_reaches_the_exact_optimum(self, problem, optimizer):
        model, likelihood, X, y = problem()
        wanted = fit(*problem(), method="cholesky").loss
        result = fit(model, likelihood, X, y, "rr-cg", optimizer)
        found = -float(exact(model.train(), y)[0])
        assert found - wanted < 0.005
        assert abs(result.loss - found) < 5 * result.loss_error + 1e-3

    def test_the_papers_schedule(self, problem):
        result = fit(*problem(), method=rtgp.RRCG.paper(), optimizer="multistep", steps=20)
        rates = result.history.column("learning_rate")
        assert rates == pytest.approx([1e-2] * 10 + [1e-3] * 4 + [1e-4] * 4 + [1e-5] * 2)
        assert result.status is FitStatus.STEPS

    @pytest.mark.real_data
    @pytest.mark.parametrize("name", ["elevators", pytest.param("pol", marks=pytest.mark.slow)])
    def test_default_rr_cg_on_real_data(self, real_data, name):
        assert gap_on_real_data(name, 400) < 0.005

    @pytest.mark.slow
    @pytest.mark.real_data
    @pytest.mark.parametrize("name, n", [("elevators", 1000), ("pol", 1000), ("kin40k", 3000), ("pol", 3000)])
    def test_default_rr_cg_on_more_real_data(self, real_data, name, n):
        assert gap_on_real_data(name, n) < 0.005


def gap_on_real_data(name: str, n: int) -> float:
    """Exact negative log marginal likelihood per point after default RR-CG training, above Cholesky's optimum."""
    data = rtgp.datasets.load(name).subset(n, 0).standardised()
    X, y = torch.tensor(data.X[:, data.X.std(0) > 0.5]), torch.tensor(data.y)

    def new(dtype):
        x, t = X.to(dtype), y.to(dtype)
        likelihood = GaussianLikelihood()
        return make_default(x, t, likelihood), likelihood, x, t

    wanted = fit(*new(torch.float64), method="cholesky").loss
    model, likelihood, x, t = new(torch.float32)
    fit(model, likelihood, x, t, method="rr-cg")
    model.double().train().set_train_data(X, y, strict=False)
    return -float(exact(model, y)[0]) - wanted


def make_default(X, y, likelihood):
    """At GPyTorch's initial values."""
    from gp_models import Model

    return Model(X, y, likelihood).to(X)


class TestInPlace:
    @pytest.mark.parametrize("method", ["cholesky", "rr-cg"])
    def test_leaves_eval_mode_and_the_data(self, problem, method):
        model, likelihood, X, y = problem()
        fit(model, likelihood, X, y, method, steps=3)
        assert not model.training
        assert not likelihood.training
        assert torch.equal(model.train_inputs[0], X)
        assert all(p.grad is None for p in model.parameters())
        assert model(X[:3]).mean.shape == (3,)

    def test_eval_mode_after_an_error_too(self, problem):
        model, likelihood, X, y = problem()
        with pytest.raises(ZeroDivisionError):
            fit(model, likelihood, X, y, "rr-cg", callback=lambda row, model: 1 / 0)
        assert not model.training

    def test_float32_is_trained_in_float64_by_lbfgs_and_comes_back(self, data):
        X, y = data[0].float(), data[1].float()
        model = make(X, y)
        seen = []
        result = fit(
            model,
            model.likelihood,
            X,
            y,
            "cholesky",
            callback=lambda row, m: seen.append(m.kernel.raw_outputscale.dtype),
        )
        assert set(seen) == {torch.float64}
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert model.train_inputs[0].dtype == model.train_targets.dtype == torch.float32
        wide = make(X.double(), y.double())
        assert result.loss == pytest.approx(
            fit(wide, wide.likelihood, X.double(), y.double(), "cholesky").loss, abs=1e-5
        )

    def test_fixed_parameters_stay(self, problem, values):
        model, likelihood, X, y = problem()
        model.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
        before = values(model)
        fit(model, likelihood, X, y, "rr-cg", steps=3)
        changed = {name for name, value in values(model).items() if not torch.equal(value, before[name])}
        assert changed == {"likelihood.noise_covar.raw_noise", "mean_module.raw_constant", "kernel.raw_outputscale"}

    def test_fixed_noise_with_a_subset_start(self, data):
        X, y = data
        noise = torch.linspace(0.05, 0.5, len(y), dtype=torch.float64)
        model = make(X, y, likelihood=FixedNoiseGaussianLikelihood(noise))
        result = fit(model, model.likelihood, X, y, "rr-cg", steps=3, subset_start=40)
        assert "40 of 120 points" in result.start
        assert torch.equal(model.likelihood.noise, noise)

    def test_takes_arrays(self, problem):
        model, likelihood, X, y = problem()
        fit(model, likelihood, X.numpy(), y.numpy(), "cholesky", steps=2)
        assert model.train_inputs[0].dtype == torch.float64


class TestRandomNumbers:
    def test_the_seed_decides_and_torchs_generator_is_left_alone(self, problem, values):
        runs = []
        for seed in (0, 0, 1):
            before = torch.get_rng_state()
            model, likelihood, X, y = problem()
            fit(model, likelihood, X, y, "rr-cg", steps=4, seed=seed, subset_start=50)
            assert torch.equal(torch.get_rng_state(), before)
            torch.manual_seed(len(runs))
            runs.append(values(model))
        assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
        assert any(not torch.equal(runs[0][name], runs[2][name]) for name in runs[0])


class TestOptimisers:
    @pytest.mark.parametrize(
        "make_optimizer",
        [
            lambda model: torch.optim.SGD,
            lambda model: lambda parameters, **settings: torch.optim.RMSprop(parameters, **settings),
        ],
    )
    def test_a_class_or_a_function(self, problem, make_optimizer):
        model, likelihood, X, y = problem()
        result = fit(model, likelihood, X, y, "rr-cg", make_optimizer(model), steps=5, learning_rate=0.02)
        assert result.history.column("learning_rate") == [0.02] * 5

    def test_one_that_is_made(self, problem):
        model, likelihood, X, y = problem()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
        result = fit(model, likelihood, X, y, "cholesky", optimizer, steps=5)
        losses = result.history.column("loss")
        assert losses[-1] < losses[0]

    def test_of_another_model_is_refused(self, problem):
        model, likelihood, X, y = problem()
        other = torch.optim.SGD(problem()[0].parameters(), lr=0.1)
        with pytest.raises(rtgp.errors.SettingError, match="none of the model's"):
            fit(model, likelihood, X, y, "cholesky", other)


class TestCallbackAndHistory:
    def test_the_callback_stops(self, problem):
        result = fit(*problem(), method="rr-cg", callback=lambda row, model: row["step"] == 4)
        assert result.status is FitStatus.STOPPED
        assert result.steps == 5
        assert len(result.history) == 5
        result = fit(*problem(), method="cholesky", callback=lambda row, model: row["step"] == 4)
        assert result.status is FitStatus.STOPPED
        assert result.steps == 4

    def test_columns(self, problem):
        seen = []
        result = fit(*problem(), method="rr-cg", steps=3, callback=lambda row, model: seen.append(row))
        assert list(result.history.columns) == [
            *("step", "loss", "loss_error", "gradient_norm", "gradient_error", "iterations", "residual"),
            *("truncation_first", "truncation_second", "truncation_probes", "rank", "neighbours", "rebuilt"),
            *("learning_rate", "seconds", "noise", "mean", "outputscale", "lengthscale[0]", "lengthscale[1]"),
        ]
        assert result.history.column("step") == [0, 1, 2]
        assert result.history.rows == seen
        assert result.history.to_frame().shape == (3, 20)
        assert result.history.column("rebuilt")[0] == 1
        assert all(0.0 < error < 1.0 for error in result.history.column("gradient_error"))
        assert all(0.0 < error < 0.1 for error in result.history.column("loss_error"))
        with pytest.raises(rtgp.errors.SettingError, match="columns"):
            result.history.column("lengthscales")

    def test_hyperparameters_are_in_their_own_units(self, problem):
        model, likelihood, X, y = problem()
        start = [float(likelihood.noise.detach()), *model.kernel.base_kernel.lengthscale.detach()[0].tolist()]
        row = fit(model, likelihood, X, y, "cholesky", steps=1).history.rows[0]
        assert [row["noise"], row["lengthscale[0]"], row["lengthscale[1]"]] == pytest.approx(start)

    def test_nothing_is_printed_unless_asked_for(self, problem, capfd, monkeypatch):
        fit(*problem(), method="rr-cg", steps=2)
        assert capfd.readouterr() == ("", "")
        monkeypatch.setenv("FORCE_COLOR", "1")  # as if it were a terminal
        fit(*problem(), method="rr-cg", steps=2, progress=True)
        shown = capfd.readouterr()
        assert shown.out == ""
        assert "training" in shown.err


class TestBadNumbers:
    @pytest.mark.parametrize("share", [0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9])
    def test_lbfgs_ends_before_a_matrix_that_is_not_definite(self, problem, monkeypatch, tmp_path, share):
        """As where the likelihood grows without end: the last good point is kept, and the user is told.

        It lies where the noise is `share` of the first; the optimum, at a quarter. Close to it steps become small,
        which is no convergence.
        """
        model, *rest = problem()
        evaluate = Problem.evaluate
        begin = model.likelihood.noise.item()

        def fails(self, *arguments, **settings):
            if self.likelihood.noise.item() < share * begin:
                raise NotPositiveDefiniteError("Not definite. Raise the noise.")
            return evaluate(self, *arguments, **settings)

        monkeypatch.setattr(Problem, "evaluate", fails)
        with pytest.warns(ConvergenceWarning, match=r"ended by L-BFGS in .*Raise the noise\. The"):
            result = fit(model, *rest, "cholesky", "lbfgs", checkpoint=tmp_path, subset_start=False)
        assert result.status is FitStatus.LIMIT
        assert share * begin <= model.likelihood.noise.item() < begin
        assert result.loss < result.history.column("loss")[0]
        # It is known to have ended.
        again = fit(model, *rest, "cholesky", "lbfgs", checkpoint=tmp_path, subset_start=False)
        assert (again.status, again.message) == (result.status, result.message)

    @pytest.mark.parametrize("optimizer", ["adam", "lbfgs", torch.optim.SGD])
    def test_a_gradient_of_nan_is_never_applied(self, problem, values, optimizer):
        model, likelihood, X, y = problem()
        calls = []

        def spoil(gradient):
            calls.append(values(model))
            return gradient * torch.nan if len(calls) >= 3 else gradient

        model.mean_module.raw_constant.register_hook(spoil)
        with pytest.warns(ConvergenceWarning, match=r"raw_constant.*float64"):
            result = fit(model, likelihood, X, y, "rr-cg", optimizer)
        assert result.status is FitStatus.LIMIT
        good = calls[:2] if optimizer == "lbfgs" else calls[1:2]  # the point before, if the line search wanted it
        assert any(all(torch.equal(value, at[name]) for name, value in values(model).items()) for at in good)

    @pytest.mark.parametrize(
        "settings, words",
        [
            ({"steps": 0}, "steps"),
            ({"seed": -1}, "seed"),
            ({"learning_rate": 0.0}, "learning_rate"),
            ({"learning_rate": 0.1}, "no meaning for 'lbfgs'"),
            ({"optimizer": "newton"}, "optimizer"),
            ({"optimizer": 3}, "optimizer"),
            ({"method": "exact"}, "method"),
            ({"subset_start": -5}, "subset_start"),
            ({"tolerance": float("nan")}, "tolerance"),
            ({"checkpoint_every": 0}, "checkpoint_every"),
        ],
    )
    def test_settings(self, problem, settings, words):
        with pytest.raises(rtgp.errors.SettingError, match=words):
            fit(*problem(), **{"method": "cholesky", **settings})

    def test_shapes(self, problem):
        model, likelihood, X, y = problem()
        with pytest.raises(rtgp.errors.InputError, match="reshape"):
            fit(model, likelihood, X, y[:, None])


class TestChoice:
    def test_depends_on_size_and_device(self):
        assert isinstance(choose_method(500, 5, "cpu")[0], rtgp.Cholesky)
        assert isinstance(choose_method(50_000, 5, "cpu")[0], rtgp.RRCG)
        assert isinstance(choose_method(5_000, 5, "cuda")[0], rtgp.Cholesky)
        assert "n = 500" in choose_method(500, 5, "cpu")[1]

    def test_is_reported(self, problem):
        result = fit(*problem(), steps=2)
        assert isinstance(result.method, rtgp.Cholesky)
        assert "Cholesky" in result.method_reason

    def test_subset_start_is_for_large_data(self):
        X, y = airports(2100, dtype=torch.float32)
        model = make(X, y)
        result = fit(model, model.likelihood, X, y, "rr-cg", steps=1)
        assert "32 neighbours of each point" in result.start  # all points, whose neighbours tell
        model = make(X, y)
        result = fit(model, model.likelihood, X, y, "rr-cg", steps=1, subset_start=1000)
        assert "1000 of 2100 points" in result.start
