"""The metamorphic relations of SVGP and POE, which are models of their own, and of predictions from all eight."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

import rtgp
from gp_models import Model
from properties.metamorphic import N, Setting, example
from properties.test_metamorphic import repeated
from rtgp._baselines import ExpertsModel, VariationalModel
from rtgp._baselines.svgp.training import lower_bound, set_best_distribution

JITTER = 1e-8  # of K(Z, Z), in units of the outputscale below


def variational(setting: Setting, inducing: Tensor, jitter: float = JITTER) -> tuple[VariationalModel, float]:
    """The best Gaussian over function values at the given points, and its lower bound."""
    exact = setting.model()
    model = VariationalModel(inducing, exact.likelihood, exact.mean_module, exact.kernel, jitter).double()
    set_best_distribution(model, setting.x, setting.y)
    return model.eval(), lower_bound(model, setting.x, setting.y)


def product(setting: Setting, parts: list[Tensor]) -> ExpertsModel:
    """Experts of these rows, each a Gaussian process of its own."""
    experts = []
    for rows in parts:
        noise = setting.noise[rows] if isinstance(setting.noise, Tensor) else setting.noise
        experts.append(setting.changed(x=setting.x[rows], y=setting.y[rows], noise=noise).model().eval())
    return ExpertsModel(experts)


def thirds(n: int = N) -> list[Tensor]:
    return list(torch.arange(n).reshape(3, -1))


NEW = torch.rand(15, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def predictions(model: VariationalModel | ExpertsModel | Model, x: Tensor = NEW) -> tuple[Tensor, Tensor]:
    at = rtgp.posterior(model, model.likelihood)
    return at.mean(x), at.variance(x)


def assert_predictions(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], tolerance: float = 1e-8) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


INDUCING = example().x[::6].clone()


class TestSVGP:
    """At inducing points that move with the data."""

    def test_permuting_rows_and_inducing_points(self) -> None:
        setting, order = example(), torch.randperm(N, generator=torch.Generator().manual_seed(5))
        model, bound = variational(setting, INDUCING)
        other, found = variational(setting.changed(x=setting.x[order], y=setting.y[order]), INDUCING.flip(0))
        assert found == pytest.approx(bound, rel=1e-9)
        assert_predictions(predictions(other), predictions(model), 1e-6)

    def test_rescaling_and_shifting_y(self) -> None:
        """The jitter is a part of the variance of y, which the caller scales (as GPRegressor does)."""
        setting, (c, a) = example(), (12.0, 7.0)
        model, bound = variational(setting, INDUCING)
        changed = setting.changed(
            y=c * setting.y + a, outputscale=c**2 * 0.8, noise=c**2 * 0.1, mean=c * setting.mean + a
        )
        other, found = variational(changed, INDUCING, c**2 * JITTER)
        assert found == pytest.approx(bound - N * math.log(c), rel=1e-9)
        mean, variance = predictions(other)
        assert_predictions(((mean - a) / c, variance / c**2), predictions(model), 1e-6)

    def test_shifting_and_scaling_x(self) -> None:
        setting = example()
        model, bound = variational(setting, INDUCING)
        factor, shift = torch.tensor([1e-3, 37.0, 1e4]).double(), torch.tensor([5.0, -3.0, 20.0]).double()
        changed = setting.changed(x=(setting.x + shift) * factor, lengthscale=setting.lengthscale * factor)
        other, found = variational(changed, (INDUCING + shift) * factor)
        assert found == pytest.approx(bound, rel=1e-8)
        assert_predictions(predictions(other, (NEW + shift) * factor), predictions(model), 1e-5)

    def test_duplicating_a_point_halves_its_noise(self) -> None:
        """Of the bound too: its penalty for what the inducing points miss is counted once for each measurement."""
        twice, merged, lacking = repeated(example())
        (model, bound), (other, found) = variational(merged, INDUCING), variational(twice, INDUCING)
        assert found == pytest.approx(bound - lacking, rel=1e-9)
        assert_predictions(predictions(other), predictions(model), 1e-6)

    def test_all_points_inducing_is_the_exact_process(self) -> None:
        """The bound is then the likelihood, but for the jitter."""
        setting = example()
        model, bound = variational(setting, setting.x, 1e-10)
        exact = setting.model()
        mll = rtgp.MarginalLogLikelihood(exact.likelihood, exact, "cholesky")
        assert bound == pytest.approx(float(mll(exact(setting.x), setting.y).detach()) * N, rel=1e-6)
        assert_predictions(predictions(model), predictions(exact.eval()), 1e-5)


class TestPOE:
    """For given experts. Which rows an expert is given is drawn: another order of the rows is another draw."""

    def test_permuting_rows_within_experts_and_experts(self) -> None:
        setting, generator = example(), torch.Generator().manual_seed(5)
        shuffled = [rows[torch.randperm(len(rows), generator=generator)] for rows in thirds()][::-1]
        assert_predictions(predictions(product(setting, shuffled)), predictions(product(setting, thirds())))

    def test_rescaling_and_shifting_y(self) -> None:
        setting, (c, a) = example(), (12.0, 7.0)
        changed = setting.changed(
            y=c * setting.y + a, outputscale=c**2 * 0.8, noise=c**2 * 0.1, mean=c * setting.mean + a
        )
        mean, variance = predictions(product(changed, thirds()))
        assert_predictions(((mean - a) / c, variance / c**2), predictions(product(setting, thirds())))

    def test_shifting_and_scaling_x(self) -> None:
        setting = example()
        factor, shift = torch.tensor([1e-3, 37.0, 1e4]).double(), torch.tensor([5.0, -3.0, 20.0]).double()
        changed = setting.changed(x=(setting.x + shift) * factor, lengthscale=setting.lengthscale * factor)
        found = predictions(product(changed, thirds()), (NEW + shift) * factor)
        assert_predictions(found, predictions(product(setting, thirds())), 1e-7)

    def test_duplicating_a_point_within_its_expert_halves_its_noise(self) -> None:
        """In another expert it does not: each knows of its own rows alone."""
        twice, merged, _ = repeated(example())
        twin = torch.tensor([N])
        first, second, third = thirds()
        wanted = predictions(product(merged, thirds()))
        assert_predictions(predictions(product(twice, [torch.cat([first, twin]), second, third])), wanted)
        apart = predictions(product(twice, [first, torch.cat([second, twin]), third]))
        assert float((apart[0] - wanted[0]).abs().max()) > 1e-4

    def test_one_expert_is_the_exact_process(self) -> None:
        setting = example()
        model = product(setting, [torch.arange(N)])
        assert_predictions(predictions(model), predictions(setting.model().eval()))


class TestExact:
    """Predictions of the six that train an exact Gaussian process are this one's."""

    @pytest.mark.parametrize("nu", [math.inf, 0.5, 2.5])
    def test_all_relations(self, nu: float) -> None:
        setting = example(nu=nu)
        wanted = predictions(setting.model().eval())
        order = torch.randperm(N, generator=torch.Generator().manual_seed(5))
        assert_predictions(predictions(setting.changed(x=setting.x[order], y=setting.y[order]).model().eval()), wanted)
        c, a = 12.0, 7.0
        rescaled = setting.changed(
            y=c * setting.y + a, outputscale=c**2 * 0.8, noise=c**2 * 0.1, mean=c * setting.mean + a
        )
        mean, variance = predictions(rescaled.model().eval())
        assert_predictions(((mean - a) / c, variance / c**2), wanted)
        factor, shift = torch.tensor([1e-3, 37.0, 1e4]).double(), torch.tensor([5.0, -3.0, 20.0]).double()
        moved = setting.changed(x=(setting.x + shift) * factor, lengthscale=setting.lengthscale * factor)
        assert_predictions(predictions(moved.model().eval(), (NEW + shift) * factor), wanted, 1e-7)

    def test_duplicating_a_point_halves_its_noise(self) -> None:
        twice, merged, _ = repeated(example())
        wanted = predictions(merged.model().eval())
        assert_predictions(predictions(twice.model().eval()), wanted)
        # Power: with the noise left as it was, the same comparison fails.
        wrong = copy.deepcopy(twice.noise)
        wrong[-1] *= 2
        found = predictions(twice.changed(noise=wrong).model().eval())
        assert float((found[1] - wanted[1]).abs().max()) > 1e-5
