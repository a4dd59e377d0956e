"""RFF and SS-RFF as methods: settings, clamping, frozen surfaces, state, training."""

from __future__ import annotations

import dataclasses
import math

import gpytorch
import pytest
import torch

import rtgp
from models import Regression, gradient
from rtgp._methods import resolve_method
from rtgp._objectives.fourier_ladder import Ladder, distribution
from rtgp._objectives.term_sizes import TermSizes
from rtgp.errors import ApproximationWarning, SettingError, UnsupportedModelError

N = 80


def make(n=N, dtype=torch.float64, lengthscale=0.4, noise=0.02):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, dtype=dtype, generator=generator)
    y = torch.sin(5 * x[:, 0]) + 0.1 * torch.randn(n, dtype=dtype, generator=generator)
    return Regression(x, y).set(lengthscale=lengthscale, outputscale=1.0, noise=noise)


def mll_of(model, method, seed=0, draws="fresh"):
    generator = torch.Generator().manual_seed(seed)
    return rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator, draws)


SETTINGS = [rtgp.RFF(), rtgp.RFF(64, "orthogonal", redraw=False), rtgp.SSRFF(), rtgp.SSRFF.paper()]


class TestSettings:
    def test_names(self):
        assert resolve_method("rff") == rtgp.RFF()
        assert resolve_method("ss-rff") == rtgp.SSRFF()

    def test_the_papers(self):
        assert rtgp.SSRFF.paper() == rtgp.SSRFF(minimum=500, step=100, probabilities="paper", scaled=False)
        assert rtgp.SSRFF.paper(step=10).step == 10
        with pytest.raises(TypeError, match="unexpected keyword"):
            rtgp.SSRFF.paper(steps=10)

    @pytest.mark.parametrize("settings", SETTINGS)
    def test_frozen_equal_and_readable(self, settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings.frequencies = "grid"
        assert dataclasses.replace(settings) == settings
        assert eval(repr(settings), {"RFF": rtgp.RFF, "SSRFF": rtgp.SSRFF}) == settings
        assert settings.make_objective() is not settings.make_objective()

    @pytest.mark.parametrize(
        "kind, setting",
        [
            (rtgp.RFF, {"features": 0}),
            (rtgp.RFF, {"features": 101}),
            (rtgp.RFF, {"features": 10.0}),
            (rtgp.RFF, {"frequencies": "sobol"}),
            (rtgp.RFF, {"redraw": 1}),
            (rtgp.SSRFF, {"minimum": 0}),
            (rtgp.SSRFF, {"minimum": "n/8"}),
            (rtgp.SSRFF, {"step": 0}),
            (rtgp.SSRFF, {"step": "double"}),
            (rtgp.SSRFF, {"step": True}),
            (rtgp.SSRFF, {"probabilities": "optimal"}),
            (rtgp.SSRFF, {"scaled": "yes"}),
            (rtgp.SSRFF, {"frequencies": "grid"}),
        ],
    )
    def test_wrong_ones_say_which_what_and_instead_of_what(self, kind, setting):
        (name,) = setting
        with pytest.raises(SettingError, match=f"The '{name}' parameter of {kind.__name__} must be .*Got .* instead"):
            kind(**setting)


class TestLadder:
    def test_default_is_an_eighth_a_quarter_and_exact(self):
        ladder = Ladder.build(2000, None, "doubling", 1)
        assert (ladder.rungs, ladder.exact_place) == ((250, 500), 1000)

    def test_the_papers(self):
        """Sec. 4.2: from 500 in steps of 100 to below n/2, whose place the exact term takes; P proportional to 1/J."""
        ladder = Ladder.build(2000, 500, 100, 1)
        assert (ladder.rungs, ladder.exact_place) == ((500, 600, 700, 800, 900), 1000)
        probabilities = ladder.paper()
        assert sum(probabilities) == pytest.approx(1.0)
        assert probabilities[0] / probabilities[-1] == pytest.approx(1000 / 600)

    def test_steps_of_one_column_are_steps_of_a_frequency(self):
        assert Ladder.build(40, 9, 1, 1).rungs == (10, 12, 14, 16, 18)

    def test_a_base_alone_leaves_the_exact_term(self):
        ladder = Ladder.build(100, 50, 10, 1)
        assert ladder.length == 1
        assert ladder.fitted([None]) == pytest.approx([1.0])

    def test_fitted_probabilities_minimise_the_variance(self):
        ladder, sizes = Ladder.build(2000, 100, "doubling", 1), [3.0, 1.0, 2.0, 4.0]

        def second_moment(p):
            return sum(s**2 / q for s, q in zip(sizes, p, strict=True))

        best = [s / sum(sizes) for s in sizes]
        assert second_moment(ladder.fitted(sizes)) < 1.02 * second_moment(best)  # a tenth is shared out evenly
        for k in range(4):
            moved = [q * (1.1 if i == k else 1.0) for i, q in enumerate(best)]
            assert second_moment([q / sum(moved) for q in moved]) > second_moment(best)

    def test_the_exact_term_is_drawn_every_other_time_at_most(self):
        fitted = Ladder.build(2000, 100, "doubling", 1).fitted([1.0, 1.0, 2.0, 1e9])
        assert fitted[-1] == 0.5
        assert sum(fitted) == pytest.approx(1.0)
        assert Ladder.build(2000, 100, "doubling", 1).fitted([0.0] * 4)[-1] <= 0.5

    def test_no_rung_is_ever_lost(self):
        fitted = Ladder.build(2000, 100, "doubling", 1).fitted([1e9, 1e-9, 1e-9, 1e-9])
        assert min(fitted) > 0.02
        assert distribution(fitted).log_pmf(4).exp() == pytest.approx(fitted[-1])

    def test_an_unmeasured_rung_goes_by_theory(self):
        ladder = Ladder.build(2000, 100, "doubling", 1)
        theory = ladder.fitted([None] * 4)
        scaled = [7.0 * size for size in ladder.theory()]
        assert ladder.fitted(scaled) == pytest.approx(theory)
        assert ladder.fitted([*scaled[:2], None, None]) == pytest.approx(theory)


class TestTermSizes:
    LADDER = Ladder.build(2000, None, "doubling", 1)

    def test_nothing_known(self):
        past = TermSizes().of(self.LADDER)
        assert past.scale() == 1.0
        assert past.sizes(1.0) == [None, None]

    def test_the_scale_is_a_regression_coefficient_between_0_and_1(self):
        features = torch.tensor([3.0, 4.0], dtype=torch.float64)
        for exact, wanted in (([1.5, 2.0], 0.5), ([9.0, 12.0], 1.0), ([-3.0, -4.0], 0.0), ([4.0, -3.0], 0.0)):
            past = TermSizes().of(self.LADDER)
            past.saw_exact(torch.tensor(exact, dtype=torch.float64), features)
            assert past.scale() == pytest.approx(wanted)

    def test_sizes(self):
        past = TermSizes().of(self.LADDER)
        past.saw_features(1, torch.tensor([3.0, 4.0], dtype=torch.float64))
        exact, features = torch.tensor([2.0, 0.0]).double(), torch.tensor([1.0, 1.0]).double()
        past.saw_exact(exact, features)
        for scale in (1.0, 0.3, 0.0):
            wanted = [5.0 * scale, float((exact - scale * features).norm())]
            assert past.sizes(scale) == pytest.approx(wanted)


class TestBadInput:
    def test_default_features_are_clamped_and_the_statistics_say_so(self):
        model = make()
        mll = mll_of(model, "rff")
        gradient(model, mll)
        assert mll.last.features == N
        mll = mll_of(model, "ss-rff")
        gradient(model, mll)
        assert mll.last.features in (10, 20)

    @pytest.mark.parametrize(
        "method, words",
        [
            (rtgp.RFF(100), r"must not exceed the number of points, 80.*Got 100"),
            (rtgp.SSRFF(50), r"no more than half .* 40.*minimum=50 for n = 80"),
            (rtgp.SSRFF.paper(), r"minimum=500 for n = 80"),
        ],
    )
    def test_explicit_values_beyond_the_data_are_refused(self, method, words):
        model = make()
        with pytest.raises(SettingError, match=words):
            gradient(model, mll_of(model, method))

    @pytest.mark.parametrize("method", [rtgp.RFF(2), rtgp.SSRFF(2)])
    def test_too_few_features_for_a_sum(self, method):
        model = make()
        model.covar_module = (model.covar_module + gpytorch.kernels.RBFKernel()).double()
        with pytest.raises(SettingError, match=r"each of the 2 terms of the kernel. Got 2: use 4 or more"):
            gradient(model, mll_of(model, method))

    @pytest.mark.parametrize("method", ["rff", "ss-rff"])
    def test_kernels_without_a_spectral_density(self, method):
        model = make()
        model.covar_module = gpytorch.kernels.PeriodicKernel().double()
        with pytest.raises(UnsupportedModelError, match=r"RBFKernel or MaternKernel.*Got PeriodicKernel.*rr-cg"):
            gradient(model, mll_of(model, method))

    @pytest.mark.parametrize("method", ["rff", "ss-rff"])
    @pytest.mark.parametrize("n", [1, 2, 3, 7])
    def test_a_few_points(self, method, n):
        model = make(n)
        found, value = gradient(model, mll_of(model, method))
        assert math.isfinite(value)
        assert bool(torch.isfinite(found).all())


class TestDraws:
    @pytest.mark.parametrize("method", SETTINGS[:3])
    def test_frozen_is_a_deterministic_surface_with_its_own_gradient(self, method):
        model = make()
        mll = mll_of(model, method, draws="frozen")
        first, again = gradient(model, mll), gradient(model, mll)
        assert first[1] == again[1]
        assert torch.equal(first[0], again[0])
        step = 1e-5
        for k, parameter in enumerate(p for p in model.parameters() if p.numel() == 1):
            index = [i for i, p in enumerate(model.parameters()) if p.numel() == 1][k]
            place = sum(p.numel() for p in list(model.parameters())[:index])
            values = []
            for sign in (1.0, -1.0):
                with torch.no_grad():
                    parameter += sign * step
                    values.append(float(mll(model(*model.train_inputs), model.train_targets)))
                    parameter -= sign * step
            slope = (values[0] - values[1]) / (2 * step)
            assert slope == pytest.approx(float(first[0][place]), rel=1e-5, abs=1e-7)

    def test_frozen_ss_rff_is_exact(self):
        model = make()
        exact = gradient(model, mll_of(model, "cholesky"))
        found = gradient(model, mll_of(model, "ss-rff", draws="frozen"))
        assert found[1] == pytest.approx(exact[1], rel=1e-12)
        torch.testing.assert_close(found[0], exact[0])

    def test_frequencies_are_redrawn_or_kept(self):
        model = make()
        for redraw in (True, False):
            mll = mll_of(model, rtgp.RFF(40, redraw=redraw))
            values = {gradient(model, mll)[1] for _ in range(3)}
            assert len(values) == (3 if redraw else 1)
        mll.reset()
        assert gradient(model, mll)[1] not in values

    @pytest.mark.parametrize("method", SETTINGS[:3])
    def test_state_continues_bit_for_bit(self, method):
        model, generator = make(), torch.Generator().manual_seed(1)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator)
        for _ in range(5):
            gradient(model, mll)
        state, random = mll._objective.state_dict(), generator.get_state()
        wanted = [gradient(model, mll) for _ in range(8)]
        other = torch.Generator()
        other.set_state(random)
        resumed = rtgp.MarginalLogLikelihood(model.likelihood, model, method, other)
        resumed._objective.load_state_dict(state)
        for gradient_wanted, value_wanted in wanted:
            found, value = gradient(model, resumed)
            assert value == value_wanted
            assert torch.equal(found, gradient_wanted)

    def test_other_data_start_the_measurement_anew(self):
        objective = rtgp.SSRFF().make_objective()
        for n in (80, 120):
            model = make(n)
            mll = mll_of(model, rtgp.SSRFF())
            mll._objective = objective
            gradient(model, mll)
            assert int(objective.state_dict()["counts"].sum()) == 1

    def test_grid_is_nearly_exact_and_not_random(self):
        model = make(300)
        exact = gradient(model, mll_of(model, "cholesky"))
        mll = mll_of(model, rtgp.RFF(280, "grid"))
        found = gradient(model, mll)
        assert torch.equal(found[0], gradient(model, mll)[0])
        assert found[1] == pytest.approx(exact[1], abs=1e-6)
        torch.testing.assert_close(found[0], exact[0], rtol=1e-3, atol=1e-5)


class TestFit:
    def test_rff_by_adam_and_the_message_names_its_bias(self):
        model = make(300, lengthscale=1.0, noise=0.5)
        result = rtgp.fit(model, model.likelihood, *model.train_inputs, model.train_targets, method="rff", steps=15)
        assert result.optimizer == "adam"
        assert "RFF (300 features) is biased towards overfitting" in result.message
        with pytest.raises(SettingError, match="'average-information' with RFF"):
            rtgp.fit(model, model.likelihood, *model.train_inputs, model.train_targets, "rff", "average-information", 3)

    def test_ss_rff_trains(self):
        model = make(300, lengthscale=1.0, noise=0.5)
        x, y = *model.train_inputs, model.train_targets
        result = rtgp.fit(model, model.likelihood, x, y, method="ss-rff", steps=30)
        assert result.optimizer == "adam"
        assert "biased" not in result.message
        twin = make(300, lengthscale=1.0, noise=0.5)
        best = rtgp.fit(twin, twin.likelihood, x, y, method="cholesky")
        loss = -float(mll_of(model.train(), "cholesky")(model(x), y).detach())
        assert loss - best.loss < 0.01
        mean = rtgp.posterior(model.eval(), model.likelihood).mean(x)
        assert float((mean - y).square().mean().detach()) < 0.02

    @pytest.mark.parametrize("method", ["rff", rtgp.SSRFF()])
    def test_warns_once_where_features_cannot_do(self, method):
        model = make(300)
        y = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        y = y + torch.sin(40 * model.train_inputs[0][:, 0]) * torch.sin(40 * model.train_inputs[0][:, 1]) * 5
        model.set_train_data(targets=y)
        with pytest.warns(ApproximationWarning, match=r"Effective dimension d_eff about .*Use method='rr-cg'") as seen:
            rtgp.fit(model, model.likelihood, *model.train_inputs, y, method=method, steps=3)
        assert sum(warning.category is ApproximationWarning for warning in seen) == 1

    def test_warns_of_a_coarse_grid(self):
        model = make(300, lengthscale=0.02)
        x, y = *model.train_inputs, model.train_targets
        with pytest.warns(ApproximationWarning, match="A grid of 100 features is too coarse"):
            rtgp.fit(model, model.likelihood, x, y, method=rtgp.RFF(100, "grid"), steps=2, subset_start=False)

    @pytest.mark.parametrize("method", ["ss-rff", rtgp.RFF(60, redraw=False)], ids=["ss-rff", "rff"])
    def test_an_interrupted_run_goes_on_to_the_same_parameters(self, method, tmp_path):
        def run(folder, stop=None):
            model = make(120, lengthscale=1.0, noise=0.5)
            rtgp.fit(
                model,
                model.likelihood,
                *model.train_inputs,
                model.train_targets,
                method=method,
                steps=12,
                checkpoint=folder,
                checkpoint_every=4,
                callback=lambda row, _: row["step"] == stop,
            )
            return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

        whole = run(tmp_path / "whole")
        assert not torch.equal(run(tmp_path / "parts", stop=5), whole)
        assert torch.equal(run(tmp_path / "parts"), whole)
