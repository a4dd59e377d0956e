"""Newton's method for noisy gradients: its step against SciPy, its way back, its end, and the optimum it finds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import GammaPrior
from scipy.optimize import minimize

import rtgp
from gp_models import Model, exact, make
from rtgp.errors import RTGPError, SettingError
from rtgp.training import ConvergenceWarning, FitStatus, fit
from rtgp.training._newton import NewtonSettings
from rtgp.training._priors import absolute, prior_hessian
from rtgp.training._problem import Problem
from rtgp.training._quadratic import box_newton_step, positive
from rtgp.training._settings import TrainingSettings


def quadratic(metric: torch.Tensor, gradient: torch.Tensor, step: torch.Tensor) -> float:
    return float(gradient @ step + 0.5 * step @ metric @ step)


def best_in_box(metric: torch.Tensor, gradient: torch.Tensor, reach: float, start: torch.Tensor) -> float:
    """By SciPy's L-BFGS-B, from the given start and from zero."""

    def function(x):
        s = torch.from_numpy(x)
        return quadratic(metric, gradient, s), (gradient + metric @ s).numpy()

    p, options = len(gradient), {"maxiter": 5000, "maxfun": 50_000, "ftol": 1e-15, "gtol": 1e-12}
    bounds = [(-reach, reach)] * p
    return min(
        minimize(function, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun
        for x in (start.numpy(), np.zeros(p))
    )


class TestStep:
    @pytest.mark.parametrize("reach", [0.01, 1.0, 10.0])
    @pytest.mark.parametrize("p, rank", [(1, 1), (2, 2), (2, 1), (6, 6), (12, 4), (30, 30), (40, 20), (200, 60)])
    def test_is_the_best_in_its_box(self, p, rank, reach):
        """rank < p: a singular metric. Coordinates differ in scale by six orders of magnitude."""
        generator = torch.Generator().manual_seed(100 * p + rank)
        scales = torch.logspace(-3, 3, p, dtype=torch.float64)
        root = torch.randn(p, rank, dtype=torch.float64, generator=generator) * scales[:, None]
        metric = root @ root.T
        noise = torch.randn(p, dtype=torch.float64, generator=generator)
        for gradient in (reach * metric.diagonal() * noise, metric.diagonal().sqrt() * noise):
            step = box_newton_step(metric, gradient, reach)
            assert float(step.abs().max()) <= reach * (1 + 1e-9)
            best = best_in_box(metric, gradient, reach, step)
            assert best < 0.0
            assert quadratic(metric, gradient, step) <= best * (1 - 1e-6)

    def test_is_newtons_where_the_box_is_wide(self):
        metric = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
        gradient = torch.tensor([0.1, -0.2], dtype=torch.float64)
        torch.testing.assert_close(box_newton_step(metric, gradient, 1.0), -torch.linalg.solve(metric, gradient))

    def test_where_the_metric_knows_nothing(self):
        gradient = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
        wanted = torch.tensor([-0.5, 0.5, 0.0], dtype=torch.float64)
        for metric in (torch.zeros(3, 3, dtype=torch.float64), torch.diag(wanted.clamp_min(0.0))):
            torch.testing.assert_close(box_newton_step(metric, gradient, 0.5), wanted, atol=1e-6, rtol=0.0)


N = 150


@pytest.fixture(scope="module")
def synthetic():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(N, 2, dtype=torch.float64, generator=generator)
    y = torch.sin(6 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * torch.randn(N, dtype=torch.float64, generator=generator)
    return X, (y - y.mean()) / y.std()


def at(data, lengthscale: float, outputscale: float, noise: float, likelihood=None):
    X, y = data
    likelihood = GaussianLikelihood() if likelihood is None else likelihood
    model = Model(X, y, likelihood).to(X)
    model.kernel.base_kernel.lengthscale = lengthscale
    model.kernel.outputscale = outputscale
    likelihood.noise = noise
    return model, likelihood, X, y


DEFAULT = (0.7, 0.7, 0.7)  # lengthscale, outputscale, noise
STARTS = [DEFAULT, (0.05, 1.0, 0.01), (20.0, 1.0, 1.0), (1.0, 100.0, 1e-3), (0.3, 0.1, 5.0)]


@pytest.fixture(scope="module")
def wanted(synthetic):
    """Cholesky's optimum, by L-BFGS."""
    return fit(*at(synthetic, *DEFAULT), method="cholesky").loss


class TestOptimum:
    @pytest.mark.parametrize("start", STARTS)
    def test_from_anywhere(self, synthetic, wanted, start):
        model, *rest = at(synthetic, *start)
        result = fit(model, *rest, method="rr-cg", optimizer="average-information", subset_start=False)
        assert result.status is FitStatus.CONVERGED
        assert -float(exact(model.train(), synthetic[1])[0]) - wanted < 0.002

    def test_exact_gradients_serve_too(self, synthetic, wanted):
        model, *rest = at(synthetic, *DEFAULT)
        result = fit(model, *rest, method="cholesky", optimizer="average-information")
        assert result.status is FitStatus.CONVERGED
        assert result.loss - wanted < 0.002

    @pytest.mark.parametrize("start", [DEFAULT, (20.0, 1.0, 1.0)])
    def test_a_strong_prior_is_in_the_objective_and_in_the_metric(self, synthetic, start):
        """It wants a noise of 1 where the data want 0.02: on the way to the optimum the likelihood falls. With so much
        noise on so few points some runs are still on their way after all their steps: the middle one of five counts."""

        def trained(seed: int, **settings) -> float:
            prior = GaussianLikelihood(noise_prior=GammaPrior(2000.0, 2000.0))
            model, *rest = at(synthetic, *start, prior)
            fit(model, *rest, **settings, subset_start=False, seed=seed)
            return -float(exact(model.train(), synthetic[1])[0])

        found = sorted(trained(seed, method="rr-cg", optimizer="average-information") for seed in range(5))
        assert found[2] - trained(0, method="cholesky") < 0.002


class TestPriors:
    def test_their_curvature(self, synthetic):
        """Gamma(a, b) of the noise v: -log p = b v - (a - 1) log v, by hand with v = floor + softplus(raw)."""
        model, likelihood, *_ = at(synthetic, 0.5, 1.0, 0.3, GaussianLikelihood(noise_prior=GammaPrior(5.0, 7.0)))
        mll = rtgp.MarginalLogLikelihood(likelihood, model, "cholesky")
        names = [name for name, _ in mll.named_parameters()]
        found = prior_hessian(model, list(mll.parameters()))
        raw = likelihood.noise_covar.raw_noise.detach()
        v, first = float(likelihood.noise.detach()), float(raw.sigmoid())
        second = first * (1.0 - first)
        wanted = (7.0 - 4.0 / v) * second + 4.0 / v**2 * first**2
        place = names.index("likelihood.noise_covar.raw_noise")
        assert float(found[place, place]) == pytest.approx(wanted, rel=1e-6)
        found[place, place] = 0.0
        assert not bool(found.any())

    def test_none(self, synthetic):
        model, likelihood, *_ = at(synthetic, *DEFAULT)
        mll = rtgp.MarginalLogLikelihood(likelihood, model, "cholesky")
        assert prior_hessian(model, list(mll.parameters())) is None

    def test_absolute(self):
        matrix = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)  # eigenvalues 3 and -1
        wanted = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
        torch.testing.assert_close(absolute(matrix), wanted)


class TestEnd:
    def test_message(self, synthetic):
        result = fit(*at(synthetic, *DEFAULT), method="rr-cg", steps=60)
        assert result.status is FitStatus.CONVERGED
        assert result.message.startswith("converged: a further Newton step promises ")
        assert result.steps == len(result.history) < 40
        assert result.optimizer == "average-information"

    def test_on_few_points_the_end_is_exact(self, synthetic):
        """Cholesky then costs no more than the steps did, and hides no decrease in noise."""
        result = fit(*at(synthetic, *DEFAULT), method="rr-cg")
        assert result.status is FitStatus.CONVERGED
        assert isinstance(result.method, rtgp.Cholesky)
        assert "the end found in " in result.method_reason
        assert result.loss_error == 0.0
        model = at(synthetic, *DEFAULT)
        assert result.loss == pytest.approx(fit(*model, method="cholesky").loss, abs=1e-6)

    def test_the_noise_left_costs_half_the_tolerance(self, synthetic):
        def cost(part: float) -> float:
            settings = TrainingSettings(newton=NewtonSettings(noise_share=part))
            result = fit(*at(synthetic, *DEFAULT), method="rr-cg", steps=200, tolerance=5e-4, _settings=settings)
            assert result.status is FitStatus.CONVERGED
            return float(result.message.rsplit(maxsplit=1)[1])

        assert cost(NewtonSettings().noise_share) <= 0.5 * 5e-4
        assert cost(0.05) <= 0.05 * 5e-4

    def test_all_steps(self, synthetic):
        result = fit(*at(synthetic, *DEFAULT), method="rr-cg", steps=2)
        assert result.status is FitStatus.STEPS
        assert "all 2 steps" in result.message
        assert result.steps == 2

    def test_the_tolerance_is_respected(self, synthetic, wanted):
        """A tighter end takes more steps. (The promise is that of a quadratic model with another curvature than the
        Hessian's: what is really left may be some times the tolerance.)"""
        steps, errors = [], []
        for tolerance in (1e-2, 1e-3, 5e-5):
            taken = []
            for seed in range(4):
                model, *rest = at(synthetic, *DEFAULT)
                result = fit(model, *rest, method="rr-cg", tolerance=tolerance, steps=200, seed=seed)
                assert result.status is FitStatus.CONVERGED
                taken.append(result.steps)
            steps.append(sum(taken))
            errors.append(-float(exact(model.train(), synthetic[1])[0]) - wanted)
        assert steps == sorted(steps)
        assert steps[0] < steps[-1]
        assert errors[-1] < 1e-3
        never = fit(*at(synthetic, *DEFAULT), method="rr-cg", tolerance=0.0, steps=30)
        assert never.status is FitStatus.STEPS


class TestTrailing:
    """Gradients whose noise costs 50 times the tolerance, and a metric that is too large, or too small."""

    def runs(self, synthetic, wanted, monkeypatch, times: float, seeds: int):
        """With so many times the metric: objectives above the optimum, over the tolerance, and how runs ended."""
        evaluate, tolerance, noisy = Problem.evaluate, 5e-4, 50.0
        found_runs = []
        for seed in range(seeds):
            generator, roots = torch.Generator().manual_seed(seed), []

            def spoilt(
                self, contrast=False, information=None, hold=False, complete=False, generator=generator, roots=roots
            ):
                found = evaluate(self, contrast, information)
                metric, p = found.information, len(found.gradient)
                if metric is not None:
                    metric = times * metric
                    roots.append(torch.linalg.cholesky(metric))
                # A Newton step by this noise alone promises `noisy` tolerances in the mean.
                draws = roots[-1] @ torch.randn(p, 2, generator=generator, dtype=torch.float64)
                draws *= (2.0 * noisy * tolerance / p) ** 0.5
                return replace(found, gradient=found.gradient + draws[:, 0], contrast=draws[:, 1], information=metric)

            monkeypatch.setattr(Problem, "evaluate", spoilt)
            model, *rest = at(synthetic, 2.0, 0.7, 0.3)
            settings = {"steps": 400, "tolerance": tolerance, "subset_start": False}
            result = fit(model, *rest, method="cholesky", optimizer="average-information", **settings)
            left = (-float(exact(model.train(), synthetic[1])[0]) - wanted) / tolerance
            found_runs.append((left, result.status))
        return zip(*found_runs, strict=True)

    @pytest.mark.slow
    def test_a_metric_three_times_too_large(self, synthetic, wanted, monkeypatch):
        """Steps are divided by their number soon, and trail behind. No single gradient tells, the mean of many does.
        Measured over six runs: 5 tolerances, and 54 where training looks at single gradients."""
        left, ended = self.runs(synthetic, wanted, monkeypatch, 3.0, 6)
        assert set(ended) == {FitStatus.CONVERGED}
        assert sum(left) / len(left) < 12

    def test_a_quarter_of_the_metric(self, synthetic, wanted, monkeypatch):
        """Steps by it go three times as far beyond the optimum as they began before it, those by mean gradients too,
        unless the curvature is felt. Measured: 0.3 tolerances."""
        left, ended = self.runs(synthetic, wanted, monkeypatch, 0.25, 5)
        assert set(ended) == {FitStatus.CONVERGED}
        assert sum(left) / len(left) < 2


class TestStiffness:
    """An information matrix that is a part of the Hessian, as it may be where the data have little noise."""

    def run(self, synthetic, monkeypatch, part: float, stiffest: float):
        evaluate = Problem.evaluate

        def soft(self, contrast=False, information=None, hold=False, complete=False):
            found = evaluate(self, contrast, information)
            return found if found.information is None else replace(found, information=part * found.information)

        monkeypatch.setattr(Problem, "evaluate", soft)
        model, *rest = at(synthetic, 2.0, 0.7, 0.3)
        settings = {"steps": 60, "subset_start": False}
        settings["_settings"] = TrainingSettings(newton=NewtonSettings(stiffest=stiffest))
        result = fit(model, *rest, method="cholesky", optimizer="average-information", **settings)
        return result, -float(exact(model.train(), synthetic[1])[0])

    def test_full_steps_would_go_to_and_fro(self, synthetic, wanted, monkeypatch):
        felt, loss = self.run(synthetic, monkeypatch, 0.25, NewtonSettings().stiffest)
        assert felt.status is FitStatus.CONVERGED
        assert loss - wanted < 5e-4
        not_felt, _ = self.run(synthetic, monkeypatch, 0.25, 1.0)
        assert not_felt.steps > 1.5 * felt.steps

    def test_it_costs_nothing_where_the_matrix_serves(self, synthetic, monkeypatch):
        (felt, first), (not_felt, second) = (
            self.run(synthetic, monkeypatch, 1.0, k) for k in (NewtonSettings().stiffest, 1.0)
        )
        assert felt.steps <= not_felt.steps + 2
        assert first == pytest.approx(second, abs=2e-4)

    def test_a_metric_is_never_negative(self):
        information = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)  # eigenvalues 3 and -1
        torch.testing.assert_close(positive(information), torch.full((2, 2), 1.5, dtype=torch.float64))


class TestWayBack:
    def spoil(self, monkeypatch, change):
        """Every evaluation passes through `change(call number, problem, evaluate)`; the points it was asked at."""
        evaluate, points = Problem.evaluate, []

        def changed(self, contrast=False, information=None, hold=False, complete=False):
            points.append(self.point)
            return change(len(points) - 1, lambda: evaluate(self, contrast, information))

        monkeypatch.setattr(Problem, "evaluate", changed)
        return points

    def test_a_rising_loss_sends_it_half_way_back(self, synthetic, monkeypatch):
        def rises(call, evaluate):
            found = evaluate()
            return replace(found, objective=found.objective + 100.0) if call in (1, 2) else found

        points = self.spoil(monkeypatch, rises)
        result = fit(*at(synthetic, *DEFAULT), method="rr-cg", steps=5, subset_start=False)
        first = points[1] - points[0]
        torch.testing.assert_close(points[2] - points[0], 0.5 * first)
        torch.testing.assert_close(points[3] - points[0], 0.25 * first)
        assert float((points[4] - points[3]).abs().max()) <= 0.25 + 0.3 * 0.25 + 1e-9  # the reach, and momentum
        assert result.steps == 5

    @pytest.mark.parametrize("noise, back", [(0.0, True), (1e6, False)])
    def test_slopes_tell_where_values_are_lost_in_noise(self, synthetic, monkeypatch, noise, back):
        """At the second point the slope has turned round, three times as steep, and the value is not known."""
        gradients = []

        def turns(call, evaluate):
            found = evaluate()
            stats = replace(found.stats, value_error=1e9)
            gradient = -3.0 * gradients[0] if call == 1 else found.gradient
            gradients.append(gradient)
            return replace(found, stats=stats, gradient=gradient, contrast=noise * found.gradient)

        points = self.spoil(monkeypatch, turns)
        fit(*at(synthetic, *DEFAULT), method="rr-cg", steps=3, subset_start=False)
        first, second = points[1] - points[0], points[2] - points[0]
        assert torch.allclose(second, 0.5 * first) == back

    def test_small_steps_are_not_judged_by_one_lucky_value(self, synthetic, wanted, monkeypatch):
        """The eighth value is lower than any other can be, and nobody knows its error: what came before and after it
        decides."""

        def lucky(call, evaluate):
            found = evaluate()
            stats = replace(found.stats, value_error=math.nan)
            return replace(found, stats=stats, objective=found.objective - (1.0 if call == 7 else 0.0))

        points = self.spoil(monkeypatch, lucky)
        model, *rest = at(synthetic, *DEFAULT)
        result = fit(model, *rest, method=rtgp.RRCG(probes=2), steps=60, subset_start=False)
        assert result.status is FitStatus.CONVERGED
        assert len(points) > 12
        assert -float(exact(model.train(), synthetic[1])[0]) - wanted < 2e-3

    def test_short_steps_promise_no_less(self, synthetic, monkeypatch):
        """After a step was taken back many times, what is left to gain is still known."""

        def rises(call, evaluate):
            found = evaluate()
            return replace(found, objective=found.objective + 100.0) if 0 < call < 12 else found

        self.spoil(monkeypatch, rises)
        result = fit(*at(synthetic, *DEFAULT), method="rr-cg", steps=14, subset_start=False)
        assert result.status is FitStatus.STEPS
        assert float(result.message.split("promises ")[1].split()[0]) > 1e-3

    def test_a_failure_shortens_the_step(self, synthetic, monkeypatch):
        def fails(call, evaluate):
            if call in (1, 2, 3):
                raise RTGPError("not definite")
            return evaluate()

        points = self.spoil(monkeypatch, fails)
        result = fit(*at(synthetic, *DEFAULT), method="rr-cg", steps=3, subset_start=False)
        first = points[1] - points[0]
        for k in (2, 3, 4):
            torch.testing.assert_close(points[k] - points[0], 0.5 ** (k - 1) * first)
        assert result.steps == len(result.history) == 3  # a failure is not a step

    def test_a_failure_at_the_start_is_raised(self, synthetic, monkeypatch):
        def fails(call, evaluate):
            raise RTGPError("not definite")

        points = self.spoil(monkeypatch, fails)
        with pytest.raises(RTGPError, match="not definite"):
            fit(*at(synthetic, *DEFAULT), method="rr-cg", subset_start=False)
        assert len(points) == 2  # once more by Cholesky
        torch.testing.assert_close(points[0], points[1])

    @pytest.mark.parametrize("rise, back", [(100.0, True), (0.0, False), (None, True)])
    def test_the_last_step_is_looked_at_too(self, synthetic, monkeypatch, rise, back):
        def rises(call, evaluate):
            if call < 7:
                return evaluate()
            if rise is None:
                raise RTGPError("not definite")
            found = evaluate()
            return replace(found, objective=found.objective + rise)

        points = self.spoil(monkeypatch, rises)
        model, likelihood, X, y = at(synthetic, *DEFAULT)
        result = fit(model, likelihood, X, y, method="rr-cg", steps=7, subset_start=False)
        assert result.steps == len(result.history) == 7
        assert len(points) == 8  # one more than there are steps
        final = Problem(model, likelihood, X, y, rtgp.RRCG(), 0).point
        torch.testing.assert_close(final, points[6 if back else 7])
        assert not torch.allclose(points[6], points[7])

    def test_the_last_step_stays_where_one_loss_says_nothing(self, synthetic, monkeypatch):
        """That of the paper's setting has one probe."""

        def rises(call, evaluate):
            found = evaluate()
            return found if call < 7 else replace(found, objective=found.objective + 100.0)

        points = self.spoil(monkeypatch, rises)
        model, likelihood, X, y = at(synthetic, *DEFAULT)
        fit(
            model,
            likelihood,
            X,
            y,
            method=rtgp.RRCG.paper(),
            optimizer="average-information",
            steps=7,
            subset_start=False,
        )
        torch.testing.assert_close(Problem(model, likelihood, X, y, rtgp.RRCG(), 0).point, points[7])

    def test_failures_without_end_end_at_the_last_good_point(self, synthetic, monkeypatch):
        def fails(call, evaluate):
            if call:
                raise RTGPError("not definite")
            return evaluate()

        points = self.spoil(monkeypatch, fails)
        model, *rest = at(synthetic, *DEFAULT)
        with pytest.warns(ConvergenceWarning, match="not definite"):
            result = fit(model, *rest, method="rr-cg", subset_start=False)
        assert result.status is FitStatus.LIMIT
        assert len(points) < 14
        assert float((points[-1] - points[0]).abs().max()) < 0.02
        torch.testing.assert_close(Problem(model, *rest, rtgp.RRCG(), 0).point, points[0])


class TestChoice:
    def test_a_learning_rate_has_no_meaning(self, problem):
        with pytest.raises(SettingError, match="no meaning for 'average-information'"):
            fit(*problem(), method="rr-cg", optimizer="average-information", learning_rate=0.1)

    @pytest.mark.parametrize(
        "settings, wanted",
        [
            ({"method": "rr-cg"}, "average-information"),
            ({"method": rtgp.CG(20)}, "average-information"),
            ({"method": "cholesky"}, "lbfgs"),
            ({"method": "rr-cg", "learning_rate": 0.1}, "adam"),
            ({"method": "rr-cg", "optimizer": "multistep"}, "multistep"),
            ({"method": "rr-cg", "optimizer": torch.optim.SGD, "learning_rate": 0.01}, "SGD"),
        ],
    )
    def test_is_reported(self, problem, settings, wanted):
        result = fit(*problem(), **settings, steps=1)
        assert result.optimizer == wanted
        assert f"optimizer={wanted}" in repr(result)

    def test_adam_for_a_deep_kernel(self, data):
        X, y = data
        features = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
        model = make(X, y, features=features)
        result = fit(model, model.likelihood, X, y, "rr-cg", steps=2)
        assert result.optimizer == "adam"

    def test_a_finished_run_says_it_again(self, problem, tmp_path):
        one, two = (fit(*problem(), method="rr-cg", steps=2, checkpoint=tmp_path) for _ in range(2))
        assert one.optimizer == two.optimizer == "average-information"
