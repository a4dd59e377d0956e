"""The whitened system: the remainder of a warm start, the error of its products, and that of its entries."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import rtgp
import rtgp._objectives.krylov as krylov
from models import Judged, Regression
from rtgp._kernels import read_kernel
from rtgp._precision import PrecisionSettings
from rtgp._solvers import NoiseUnits
from rtgp.operators import DenseOperator, make_from_form
from rtgp.operators._protocol import KernelOperator

N = 1500
NOISE, SIGNAL = 2.0**-6, 2.0**13  # powers of two: whitening and the outputscale do not round


def smooth(dtype: torch.dtype = torch.float32, signal: float = SIGNAL, n: int = N) -> Regression:
    """Points that are much alike to the kernel: products are sums of n large terms that cancel."""
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(n, generator=torch.Generator().manual_seed(1)).to(dtype)
    return Regression(x, y).set(lengthscale=0.7, outputscale=NOISE * signal, noise=NOISE)


class WideSums(DenseOperator):
    """Whose `wide_matmul` is what it says, to the last digit."""

    def wide_matmul(self, v: Tensor) -> Tensor:
        return self.rows(torch.arange(self.form.size)).double() @ v.double()


def system_of(model: Regression, operator: type[KernelOperator] | str) -> NoiseUnits:
    form = read_kernel(model.covar_module, model.train_inputs[0])
    made = make_from_form(form, operator) if isinstance(operator, str) else operator(form)
    return NoiseUnits(made, torch.tensor(NOISE))


def remainder_error(system: NoiseUnits, y: Tensor) -> tuple[float, float]:
    """(of `remainder`, of sums in float32), root mean square, at the solution rounded to float32. A is made of the
    kernel matrix that the operator holds, so that nothing but the sums differs."""
    target = system.scaled(y[:, None])
    A = system.kernel_rows(torch.arange(system.size)) + torch.eye(system.size, dtype=torch.float64)
    start = torch.linalg.solve(A, target.double()).float()
    exact = target.double() - A @ start.double()
    found = system.remainder(target, start).double(), (target - system.matmul(start)).double()
    wide, narrow = (float((one - exact).square().mean().sqrt()) for one in found)
    return wide, narrow


class TestRemainder:
    def test_its_sums_are_in_float64(self) -> None:
        """Measured: 2e-11 of the target's size, where sums in float32 leave 7e-3 of it."""
        model = smooth()
        system = system_of(model, WideSums)
        wide, narrow = remainder_error(system, model.train_targets)
        size = float(system.scaled(model.train_targets[:, None]).square().mean().sqrt())
        assert wide < 1e-5 * size
        assert narrow > 1e-3 * size  # the test has power

    @pytest.mark.parametrize("operator", ["dense", "tiled"])
    def test_those_of_the_operators_are(self, operator: str) -> None:
        """`wide_matmul` promises sums in float64."""
        model = smooth()
        wide, narrow = remainder_error(system_of(model, operator), model.train_targets)
        assert wide < 0.1 * narrow

    def test_the_value_of_a_warm_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The quadratic term, per point, in calls that begin at the last solution. Measured: 8e-5 off; with
        sums in float32 1.5e-3 to 2.7e-3."""
        monkeypatch.setattr(krylov, "make_from_form", lambda form, name, least_noise: WideSums(form))
        exact, model = smooth(torch.float64), smooth()
        with torch.no_grad():
            wanted = quadratics(exact, "cholesky", 1)[0]
            # It would go over to float64.
            found = quadratics(model, Judged(precision=PrecisionSettings(products=math.inf)), 4)[1:]
        assert all(abs(value - wanted) < 5e-4 * N for value in found)


def quadratics(model: Regression, method: str | rtgp.RRCG, calls: int) -> list[float]:
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(0))
    found = []
    for _ in range(calls):
        mll(model(*model.train_inputs), model.train_targets)
        found.append(mll.last.quadratic)
    return found


class TestProducts:
    @pytest.mark.parametrize("n, count", [(N, 64), (64, 64), (10, 10)])
    def test_points_by_which_all_are_judged(self, n: int, count: int) -> None:
        points = system_of(smooth(n=n), "dense").sample_index().tolist()
        assert len(set(points)) == count
        gaps = [b - a for a, b in itertools.pairwise([*points, n])]
        assert points[0] == 0
        assert max(gaps) - min(gaps) <= 1

    def test_their_error_is_measured_in_64_rows_of_8_columns(self) -> None:
        """One column would be multiplied by another routine, few rows by chance by a good one."""
        system, seen = system_of(smooth(n=300), "dense"), []
        error, product = system.product_error(), system.matmul
        off = torch.zeros(300, 8)
        off[system.sample_index()[5], 3] = 1.0  # one entry of 64 x 8 is off by one

        def counted(v: Tensor) -> Tensor:
            seen.append(tuple(v.shape))
            return product(v) + off

        system.matmul = counted  # type: ignore[method-assign]
        assert system.product_error() == pytest.approx(math.sqrt(1.0 / (64 * 8)), rel=10 * error)
        assert seen == [(300, 8)]

    @pytest.mark.parametrize("signal", [1e2, 1e4])
    def test_what_they_are_expected_to_be_off_by(self, signal: float) -> None:
        """A factor of 2 to 20 below: that of the order in which terms are added."""
        system = system_of(smooth(signal=signal), "dense")
        assert 2.0 < system.product_error() / system.expected_product_error() < 20.0

    @pytest.mark.parametrize("growth, times", [(1.24, 1), (1.26, 2), (0.5, 1)])
    def test_it_is_measured_again_where_a_quarter_more_is_expected(
        self, growth: float, times: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is expected to grow as the outputscale does."""
        measured, original = [], NoiseUnits.product_error
        monkeypatch.setattr(NoiseUnits, "product_error", lambda *given: measured.append(1) or original(*given))
        model = smooth(signal=10.0, n=100)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "rr-cg", torch.Generator().manual_seed(0))
        with torch.no_grad():
            for signal in (10.0, 10.0, 10.0 * growth):
                model.covar_module.outputscale = NOISE * signal
                mll(model(*model.train_inputs), model.train_targets)
        assert len(measured) == times


class TestLimits:
    def test_rounding_is_about_what_rounding_does(self) -> None:
        """The norm of what is lost where K is rounded to float32, for a kernel whose entries have no common factor."""
        system = system_of(smooth(torch.float64, signal=100.0, n=400), "dense")
        K = system.kernel_rows(torch.arange(400))
        lost = float(torch.linalg.matrix_norm(K.float().double() - K, 2))
        assert 0.3 < lost / system.limits(torch.float32).rounding < 1.0
