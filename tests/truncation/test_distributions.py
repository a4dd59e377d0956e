"""Each truncation law against a slow version of its definition, and its samples against its probabilities."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from rtgp.errors import SettingError
from rtgp.truncation import ExponentialDecay, Fixed, Geometric, PowerLaw, Tabulated, Uniform
from truncation.laws import ALL
from truncation.reference import moments, pmf_table, survival_table

THIN = [law for law in ALL if law.maximum is not None or not isinstance(law, PowerLaw)]


@pytest.mark.parametrize("law", ALL, ids=repr)
class TestAgainstReference:
    def test_pmf(self, law):
        expected = pmf_table(law)
        j = torch.arange(1, len(expected) + 1)
        np.testing.assert_allclose(law.log_pmf(j).exp().numpy(), expected, rtol=1e-11, atol=1e-300)

    def test_survival_is_the_tail_sum_of_the_pmf(self, law):
        expected = survival_table(law)
        j = torch.arange(1, len(expected) + 1)
        np.testing.assert_allclose(law.log_survival(j).exp().numpy(), expected, rtol=1e-11)
        assert expected[0] == pytest.approx(1, rel=1e-12)  # the pmf sums to one
        assert float(law.log_survival(law.first)) == 0
        assert float(law.log_pmf(law.first)) > -math.inf

    def test_outside_the_support(self, law):
        assert float(law.log_survival(0)) == 0
        assert float(law.log_pmf(0)) == -math.inf
        assert float(law.log_pmf(law.first - 1)) == -math.inf
        if law.maximum is not None:
            beyond = torch.tensor([law.maximum + 1, law.maximum + 1000])
            assert torch.all(law.log_survival(beyond) == -math.inf)
            assert torch.all(law.log_pmf(beyond) == -math.inf)
            assert float(law.log_survival(law.maximum)) > -math.inf

    def test_scalar_and_tensor_indices_agree_in_float64(self, law):
        j = torch.tensor([[1, 7], [19, 40]])
        for function in (law.log_pmf, law.log_survival):
            assert function(j).shape == (2, 2)
            assert function(j).dtype == function(7).dtype == torch.float64
            torch.testing.assert_close(function(7), function(j)[0, 1], rtol=1e-14, atol=0)
        assert law.log_survival_given(19, ()) == pytest.approx(float(law.log_survival(19)), rel=1e-14)

    def test_real_indices_are_refused(self, law):
        with pytest.raises(SettingError, match="integer"):
            law.log_survival(torch.tensor([1.0]))

    def test_samples(self, law):
        """Chi-square of 20,000 draws, false alarm 1e-6 per law."""
        sample = law.sample(20_000, torch.Generator().manual_seed(0))
        assert sample.dtype == torch.int64
        assert chi_square_p(sample, pmf_table(law)) > 1e-6

    def test_sample_is_the_last_survived_index(self, law):
        uniform = torch.tensor([1.0, 0.913, 0.487, 0.213, 0.113], dtype=torch.float64)
        survival = survival_table(law)
        survival[: law.first] = 1.0
        expected = [int((u <= survival).sum()) for u in uniform.tolist()]
        assert max(expected) < len(survival) or law.maximum
        assert law.truncation_at(uniform).tolist() == expected


def chi_square_p(sample: torch.Tensor, pmf: np.ndarray) -> float:
    """P-value of the sample under the pmf, neighbours pooled until each class expects 10 draws."""
    observed = np.bincount(sample.clamp(max=len(pmf) + 1).numpy(), minlength=len(pmf) + 2)[1:]
    expected = len(sample) * np.append(pmf, max(1 - pmf.sum(), 0.0))
    label = np.floor(np.cumsum(expected[::-1])[::-1] / 10.0 + 1e-9)  # equal labels: fewer than 10 between them
    seen, wanted = (np.array([part[label == k].sum() for k in np.unique(label)]) for part in (observed, expected))
    if len(wanted) == 1:
        return float(seen[0] == len(sample))
    if wanted[0] < 10:  # the far tail, joined to its neighbour
        seen, wanted = np.append(seen[0] + seen[1], seen[2:]), np.append(wanted[0] + wanted[1], wanted[2:])
    if len(wanted) == 1:
        return 1.0
    return float(stats.chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(wanted) - 1))


def test_chi_square_has_power():
    """A rate that is 8% off is refused with the same number of draws."""
    sample = ExponentialDecay(0.216).sample(20_000, torch.Generator().manual_seed(0))
    assert chi_square_p(sample, pmf_table(ExponentialDecay(0.2))) < 1e-6


@pytest.mark.parametrize("law", THIN, ids=repr)
def test_moments(law):
    mean, std = moments(law)
    assert law.mean == pytest.approx(mean, rel=1e-11)
    assert law.std == pytest.approx(std, rel=1e-10, abs=1e-12)


class TestFarTail:
    def test_exponential_survival_where_one_minus_cdf_is_zero(self):
        law = ExponentialDecay(0.05, 80)
        j = torch.arange(80, 2001)
        cdf32 = torch.cumsum(law.log_pmf(j).exp().float(), dim=0)
        assert float(1 - cdf32[-2]) <= 1e-6  # nothing but rounding is left of exp(-96) = 2e-42
        assert float(law.log_survival(2000)) == pytest.approx(-0.05 * 1920, rel=1e-15)
        assert float(law.log_pmf(2000)) == pytest.approx(-96 + math.log(-math.expm1(-0.05)), rel=1e-15)

    def test_exponential_survival_at_the_end_of_a_finite_support(self):
        law = ExponentialDecay(0.05, 80, 1000)
        assert float(law.log_survival(1000)) == pytest.approx(float(law.log_pmf(1000)), rel=1e-14)

    @pytest.mark.parametrize("rate", [1e-10, 1e-3, 30.0])
    def test_extreme_rates(self, rate):
        law = ExponentialDecay(rate, 2, 9)
        with mpmath.workdps(40):
            weights = [mpmath.exp(-mpmath.mpf(rate) * j) for j in range(2, 10)]
            expected = [float(mpmath.log(sum(weights[k:]) / sum(weights))) for k in range(8)]
        np.testing.assert_allclose(law.log_survival(torch.arange(2, 10)).numpy(), expected, rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize("exponent", [1.01, 1.5, 3.0, 20.0, 300.0])
    @pytest.mark.parametrize("minimum, step", [(1, 1), (3, 7), (500, 100)])
    def test_power_law_without_end(self, exponent, minimum, step):
        """Down to survivals of 10^-1000 and less, which must not read as the end of the support."""
        law = PowerLaw(exponent, minimum, step=step)
        for rank in (0, 1, 2, 30, 10_000, 10**7):
            with mpmath.workdps(60):
                s, q = mpmath.mpf(exponent), mpmath.mpf(minimum) / step
                expected = mpmath.log(mpmath.zeta(s, q + rank)) - mpmath.log(mpmath.zeta(s, q))
            got = float(law.log_survival(minimum + rank * step))
            assert got == pytest.approx(float(expected), rel=1e-12, abs=1e-13)

    def test_power_law_with_a_steep_finite_tail(self):
        law = PowerLaw(200.0, 1, 1000)
        assert float(law.log_survival(1000)) == pytest.approx(-200 * math.log(1000), rel=1e-12)

    def test_power_law_moments(self):
        with mpmath.workdps(40):
            zeta = [mpmath.zeta(mpmath.mpf(4.5) - k, 6) for k in range(3)]
            mean, square = float(zeta[1] / zeta[0]), zeta[2] / zeta[0]
            std = float(mpmath.sqrt(square - (zeta[1] / zeta[0]) ** 2))
        law = PowerLaw(4.5, 6)
        assert (law.mean, law.std) == (pytest.approx(mean, rel=1e-13), pytest.approx(std, rel=1e-12))
        assert PowerLaw(2.5).std == math.inf
        assert PowerLaw(2.5).mean < math.inf
        assert PowerLaw(2.0).mean == math.inf

    def test_heavy_tails_do_not_overflow_when_sampled(self):
        law = PowerLaw(1.05)
        assert torch.all(law.truncation_at(torch.tensor([2.0**-53, 1.0], dtype=torch.float64)) >= 1)


class TestFromMoments:
    @pytest.mark.parametrize("mean, std", [(100, 20), (100, 10), (99.5, 98.9), (3.3, 0.6), (12.25, 1.5), (1e4, 300)])
    def test_exponential_is_exact(self, mean, std):
        law = ExponentialDecay.from_moments(mean, std)
        assert (law.mean, law.std) == (pytest.approx(mean, rel=1e-11), pytest.approx(std, rel=1e-10))

    @pytest.mark.parametrize("maximum", [170, 1000])
    def test_exponential_with_an_end_is_exact(self, maximum):
        law = ExponentialDecay.from_moments(100, 20, maximum)
        assert law.maximum == maximum
        assert (law.mean, law.std) == (pytest.approx(100, rel=1e-11), pytest.approx(20, rel=1e-10))

    @pytest.mark.parametrize("mean, std, maximum", [(100, 20, 1000), (100, 20, 130), (30, 5.5, 40), (10, 8.5, 200)])
    def test_largest_entropy_table_is_exact(self, mean, std, maximum):
        law = Tabulated.from_moments(mean, std, maximum)
        assert law.maximum == maximum
        assert (law.mean, law.std) == (pytest.approx(mean, rel=1e-9), pytest.approx(std, rel=1e-9))
        # log P is quadratic in j, where the differences of the table still resolve P
        log_pmf = law.log_pmf(torch.arange(1, maximum + 1))
        curvature = torch.diff(log_pmf, n=2)[(log_pmf[1:-1] > -20) & (log_pmf[2:] > -20) & (log_pmf[:-2] > -20)]
        torch.testing.assert_close(curvature, curvature[:1].expand_as(curvature), rtol=0, atol=1e-4)

    @pytest.mark.parametrize("family", [Geometric, Uniform, PowerLaw])
    @pytest.mark.parametrize("mean, std", [(100, 20), (60.3, 12.1), (250, 90)])
    def test_integer_families_come_near(self, family, mean, std):
        law = family.from_moments(mean, std)
        assert (law.mean, law.std) == (pytest.approx(mean, rel=0.05), pytest.approx(std, rel=0.05))

    def test_power_law_with_an_end(self):
        law = PowerLaw.from_moments(400, 150, maximum=2000, step=10)
        assert (law.mean, law.std) == (pytest.approx(400, rel=1e-9), pytest.approx(150, rel=0.05))
        assert law.step == 10

    def test_fixed(self):
        assert Fixed.from_moments(100.2) == Fixed(100)

    @pytest.mark.parametrize(
        "build",
        [
            lambda: ExponentialDecay.from_moments(10, 200),
            lambda: ExponentialDecay.from_moments(3.5, 0.1),
            lambda: ExponentialDecay.from_moments(100, 30, 110),
            lambda: Geometric.from_moments(2.4, 0.1),
            lambda: Uniform.from_moments(10, 50),
            lambda: PowerLaw.from_moments(800, 200, maximum=1000),
            lambda: PowerLaw.from_moments(800, 200, maximum=500),
            lambda: Tabulated.from_moments(10, 50, 20),
            lambda: Fixed.from_moments(10, 3),
        ],
    )
    def test_out_of_reach(self, build):
        with pytest.raises(SettingError, match=r"The nearest found.* has mean .* and standard deviation"):
            build()

    @pytest.mark.parametrize("mean, std", [(0.5, 1), (10, 0), (10, -1), (math.nan, 1), (10, math.inf)])
    def test_wanted_moments_are_checked(self, mean, std):
        for family in (ExponentialDecay, Geometric, Uniform, PowerLaw):
            with pytest.raises(SettingError, match="must be"):
                family.from_moments(mean, std)


class TestConstruction:
    def test_message(self):
        with pytest.raises(SettingError) as error:
            ExponentialDecay(-1)
        expected = "The 'rate' parameter of ExponentialDecay must be a positive finite number. Got -1 instead."
        assert str(error.value) == expected

    @pytest.mark.parametrize(
        "build, name",
        [
            (lambda: ExponentialDecay(math.inf), "rate"),
            (lambda: ExponentialDecay(math.nan), "rate"),
            (lambda: ExponentialDecay("fast"), "rate"),
            (lambda: ExponentialDecay(True), "rate"),
            (lambda: ExponentialDecay(0.1, 0.5), "minimum"),
            (lambda: ExponentialDecay(0.1, 10, 9), "maximum"),
            (lambda: ExponentialDecay(0.1, 10, 20.5), "maximum"),
            (lambda: Geometric(0.0), "p"),
            (lambda: Geometric(1.0), "p"),
            (lambda: Geometric(0.5, 1.5), "minimum"),
            (lambda: Uniform(0, 5), "minimum"),
            (lambda: Uniform(5, 4), "maximum"),
            (lambda: Fixed(0), "m"),
            (lambda: Fixed(2.0), "m"),
            (lambda: Tabulated([]), "survival"),
            (lambda: Tabulated([0.9, 0.5]), "survival"),
            (lambda: Tabulated([1.0, 0.5, 0.6]), "survival"),
            (lambda: Tabulated([1.0, 0.0]), "survival"),
            (lambda: Tabulated([1.0, math.nan]), "survival"),
            (lambda: PowerLaw(0.0, 1, 10), "exponent"),
            (lambda: PowerLaw(1.0), "exponent"),
            (lambda: PowerLaw(2.0, 0), "minimum"),
            (lambda: PowerLaw(2.0, step=0), "step"),
            (lambda: PowerLaw(2.0, 1, 10**12), "maximum"),
        ],
    )
    def test_bad_parameters(self, build, name):
        with pytest.raises(SettingError, match=rf"The '{name}' parameter of \w+ must be .*\. Got .* instead\."):
            build()

    def test_settings_are_frozen_values(self):
        table = Tabulated([1, 0.5])
        assert table.survival == (1.0, 0.5)
        assert table == Tabulated((1.0, 0.5))
        assert hash(table) == hash(Tabulated((1.0, 0.5)))
        assert repr(table) == "Tabulated(survival=(1.0, 0.5))"
        with pytest.raises(AttributeError):
            table.survival = (1.0,)

    def test_maximum_is_the_last_index_of_the_support(self):
        assert PowerLaw(1.0, 500, 1050, step=100).maximum == 1000
        assert Fixed(7).maximum == 7
        assert Tabulated([1, 0.5, 0.2]).maximum == 3
