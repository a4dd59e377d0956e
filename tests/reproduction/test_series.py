"""What the items compute beside the library's own estimators, against these and against exact values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import rtgp
from reproduction import decay, models, series
from reproduction.methods import METHODS, truncation
from rtgp._estimator.model import new_model
from rtgp._preconditioners import Identity
from rtgp._solvers import Output, conjugate_gradients
from rtgp._traces import inverse_quadratic, log_det, log_det_series
from rtgp._traces.probes import random_signs
from rtgp.errors import SettingError
from rtgp.truncation import ExponentialDecay, Fixed, fixed, russian_roulette

N = 60


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, 2, dtype=torch.float64, generator=generator)
    y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.1 * torch.randn(N, dtype=torch.float64, generator=generator)
    model = new_model(x, y, "rbf", None)
    with torch.no_grad():
        model.covar_module.base_kernel.lengthscale = 0.3
        model.likelihood.noise = 0.05
    return model


@pytest.fixture(scope="module")
def system(problem):
    return series.covariance(problem)


def test_covariance_and_exact_terms(problem, system):
    matrix, y = system
    one, two = series.exact_terms(matrix, y)
    assert one == pytest.approx(float(torch.logdet(matrix)), rel=1e-10)
    assert two == pytest.approx(float(y @ torch.linalg.solve(matrix, y)), rel=1e-10)
    n = len(y)
    objective = 0.5 * (one + two + n * torch.log(torch.tensor(2 * torch.pi)).item()) / n
    assert models.exact_objective(problem) == pytest.approx(objective, rel=1e-6)


def test_increments_are_what_the_estimators_sum(system):
    """The same weights through `estimators.log_det` and `inverse_quadratic`, draw by draw."""
    matrix, y = system
    generator = torch.Generator().manual_seed(1)
    probes = random_signs(N, 3, generator)
    terms = series.increments(matrix, y, probes)
    rhs = torch.cat([y[:, None], probes], dim=1)
    run = conjugate_gradients(
        lambda v: matrix @ v, rhs, fixed(None), [Output(0, None)], Identity(), tolerance=series.END
    )
    w = series.weights(METHODS["rr-cg"](10), len(terms.quadratic), 4, generator)
    weighted = replace(run, weights=w)
    zero = torch.zeros((), dtype=torch.float64)
    for draw in range(4):
        theirs = log_det(log_det_series(weighted, slice(1, 4)), weighted.weights[:, draw], zero)
        torch.testing.assert_close((w[:, draw, None] * terms.log_det).sum(0), theirs, rtol=1e-10, atol=1e-10)
        mine = float((w[:, draw] * terms.quadratic).sum())
        assert mine == pytest.approx(float(inverse_quadratic(weighted, 0, draw)), rel=1e-12)


def test_weights_are_the_methods_own(system):
    """Plain CG: ones up to its end. RR-CG: mean one at every index (4.5 standard errors: false alarm 1e-5 for
    each)."""
    generator = torch.Generator().manual_seed(2)
    plain = series.weights(METHODS["cg"](7), 20, 5, generator)
    assert torch.equal(plain, torch.cat([torch.ones(7, 5), torch.zeros(13, 5)]).double())
    w = series.weights(METHODS["rr-cg"](10), 20, 6000, generator)
    error = w.std(1) / 6000**0.5
    assert bool(((w.mean(1) - 1).abs() <= 4.5 * error + 1e-12).all())
    assert int((w[:, 0] > 0).sum()) == int((w[:, 0] > 0).long().cumprod(0).sum())  # a beginning of the series
    with pytest.raises(SettingError, match="conjugate gradients"):
        series.weights(rtgp.Cholesky(), 5, 1, generator)


def test_expected_truncation():
    for wanted in (5, 10, 20, 40, 100):
        assert truncation(wanted).mean == pytest.approx(wanted, abs=0.6)
    paper = rtgp.RRCG.paper().truncation
    assert truncation(100) == paper


def test_expectation_over_unit_probes_is_exact(system):
    matrix, y = system
    terms = decay.mean_increments(matrix, y)
    one, two = series.exact_terms(matrix, y)
    assert float(terms.log_det.sum()) == pytest.approx(one, rel=1e-8)
    assert float(terms.quadratic.sum()) == pytest.approx(two, rel=1e-8)


class TestEfficiency:
    def test_value_by_simulation(self):
        """Enumerated mean and variance against 40,000 draws of the library's roulette. The kurtosis is about 9, so that
        their variance scatters by 1.4%: false alarm 5e-4."""
        law, terms = ExponentialDecay(0.5, 1, 12), 0.6 ** torch.arange(12, dtype=torch.float64)
        found = decay.value_efficiency(law, terms)
        assert found.mean == pytest.approx(float(terms.sum()), rel=1e-12)
        assert found.cost == pytest.approx(law.mean)
        weighting = russian_roulette(law, 40_000, torch.Generator().manual_seed(0))
        total = torch.zeros(40_000, dtype=torch.float64)
        for term in terms.tolist():
            drawn = weighting.next(1.0)
            if drawn is None:
                break
            total += term * torch.tensor(drawn, dtype=torch.float64)
        assert float(total.var()) == pytest.approx(found.variance, rel=0.05)

    def test_gradient_is_exact_in_the_mean(self, system):
        matrix, y = system
        derivative = matrix - 0.05 * torch.eye(N, dtype=torch.float64)
        law = ExponentialDecay(0.2, 1, 4 * N)
        found = decay.gradient_efficiency(law, matrix, derivative, y)
        alpha = torch.linalg.solve(matrix, y)
        assert found.mean == pytest.approx(float(alpha @ derivative @ alpha), rel=1e-7)
        assert found.variance > 0
        assert law.mean < found.cost < 2 * law.mean

    def test_certain_truncation_has_no_variance(self):
        found = decay.value_efficiency(Fixed(5), torch.ones(5, dtype=torch.float64))
        assert (found.mean, found.variance, found.cost) == (5.0, 0.0, 5.0)

    def test_decay_rate(self):
        assert decay.decay_rate([3.0 * 0.7**j for j in range(40)]) == pytest.approx(
            -torch.log(torch.tensor(0.7)).item()
        )


class TestRungs:
    def test_terms_telescope(self, problem, system):
        """Base plus all differences is the exact value, whatever the frequencies; the mean of the base is RFF's,
        within 4 of the sum of two standard errors: false alarm below 1e-4."""
        found = decay.rung_differences(problem, 4, 4, 50, seed=0)
        exact = series.exact_terms(*system)
        log_det, quadratic, _ = models.sampled(problem, METHODS["rff"](4), 400, seed=1)
        for k, (differences, sample) in enumerate(((found.log_det, log_det), (found.quadratic, quadratic))):
            base = exact[k] - differences.sum(1)
            error = float(base.std() / 50**0.5 + sample.std() / 20)
            assert abs(float(base.mean() - sample.mean())) < 4 * error

    def test_variance_of_a_single_sample(self):
        differences = torch.tensor([[1.0, 2.0], [1.0, 2.0]], dtype=torch.float64)
        law = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
        assert decay.single_sample_variance(differences, law) == pytest.approx(0.0, abs=1e-12)
        law = torch.tensor([0.5, 0.5], dtype=torch.float64)
        assert decay.single_sample_variance(differences, law) == pytest.approx(1.0)  # 2 or 4
