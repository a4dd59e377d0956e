"""The whitened system: the remainder of a warm start, the error of its products, and the limits of a precision."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rtgp
import rtgp.objectives.krylov as krylov
from models import Regression
from rtgp.errors import InputError, PrecisionWarning
from rtgp.kernels import read_kernel
from rtgp.operators import DenseOperator, make_from_form
from rtgp.operators.protocol import KernelOperator
from rtgp.solvers import WhitenedSystem
from rtgp.solvers import system as system_module
from rtgp.solvers.system import PrecisionLimits, warn_of_products, warn_of_rounding

N = 1500
BELOW, ABOVE = 0.999, 1.001  # times a limit
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


def system_of(model: Regression, operator: type[KernelOperator] | str) -> WhitenedSystem:
    form = read_kernel(model.covar_module, model.train_inputs[0])
    made = make_from_form(form, operator) if isinstance(operator, str) else operator(form)
    return WhitenedSystem(made, torch.tensor(NOISE))


def remainder_error(system: WhitenedSystem, y: Tensor) -> tuple[float, float]:
    """(of `remainder`, of sums in float32), root mean square, at the solution rounded to float32. A is made of the
    kernel matrix that the operator holds, so that nothing but the sums differs."""
    target = system.whiten(y[:, None])
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
        size = float(system.whiten(model.train_targets[:, None]).square().mean().sqrt())
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
        monkeypatch.setattr(system_module, "PRODUCT_LIMIT", math.inf)  # it would go over to float64
        monkeypatch.setattr(krylov, "make_from_form", lambda form, name: WideSums(form))
        exact, model = smooth(torch.float64), smooth()
        with torch.no_grad():
            wanted = quadratics(exact, "cholesky", 1)[0]
            found = quadratics(model, rtgp.RRCG(), 4)[1:]
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
        points = system_of(smooth(n=n), "dense").some_points().tolist()
        assert len(set(points)) == count
        gaps = [b - a for a, b in itertools.pairwise([*points, n])]
        assert points[0] == 0
        assert max(gaps) - min(gaps) <= 1

    def test_their_error_is_measured_in_64_rows_of_8_columns(self) -> None:
        """One column would be multiplied by another routine, few rows by chance by a good one."""
        system, seen = system_of(smooth(n=300), "dense"), []
        error, product = system.product_error(), system.matmul
        off = torch.zeros(300, 8)
        off[system.some_points()[5], 3] = 1.0  # one entry of 64 x 8 is off by one

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

    @pytest.mark.parametrize("error, told", [(0.015 * BELOW, False), (0.015 * ABOVE, True), (math.nan, False)])
    @pytest.mark.parametrize("widened, remedy", [(True, "computed in float64 from here on"), (False, "Use float64")])
    def test_limit(self, error: float, told: bool, widened: bool, remedy: str) -> None:
        system = system_of(smooth(n=10), "dense")
        system.product_error = lambda: error  # type: ignore[method-assign]
        words = warned(lambda: warn_of_products(system, widened), told)
        if told:
            assert "float32 is too coarse for this system: rounding in its products amounts to 0.015 times" in words
            assert remedy in words

    @pytest.mark.parametrize("growth, times", [(1.24, 1), (1.26, 2), (0.5, 1)])
    def test_it_is_measured_again_where_a_quarter_more_is_expected(
        self, growth: float, times: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is expected to grow as the outputscale does."""
        measured, original = [], WhitenedSystem.product_error
        monkeypatch.setattr(WhitenedSystem, "product_error", lambda system: measured.append(1) or original(system))
        model = smooth(signal=10.0, n=100)
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "rr-cg", torch.Generator().manual_seed(0))
        with torch.no_grad():
            for signal in (10.0, 10.0, 10.0 * growth):
                model.covar_module.outputscale = NOISE * signal
                mll(model(*model.train_inputs), model.train_targets)
        assert len(measured) == times


class TestLimits:
    def limits(self, dtype: torch.dtype, rounding: float = 0.0, condition: float = 1.0) -> PrecisionLimits:
        return PrecisionLimits(size=100, dtype=dtype, signal=1e3, condition=condition, rounding=rounding)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("factor", [1.0, 7.0])
    @pytest.mark.parametrize("times, told", [(BELOW, False), (ABOVE, True)])
    def test_rounding(self, dtype: torch.dtype, factor: float, times: float, told: bool) -> None:
        limits = self.limits(dtype, 0.05 * times / factor)
        words = warned(lambda: warn_of_rounding(limits, factor=factor), told)
        if told:
            assert f"{dtype} is too coarse" in words
            assert "rounding the kernel matrix amounts to 0.05 times the noise" in words
            assert "signal 1.0e+03 times the noise, n = 100" in words

    @pytest.mark.parametrize(
        "dtype, condition, told",
        [
            (torch.float64, 1e14 * BELOW, False),
            (torch.float64, 1e14 * ABOVE, True),
            (torch.float32, 1e20, False),  # where rounding says all
        ],
    )
    def test_condition(self, dtype: torch.dtype, condition: float, told: bool) -> None:
        words = warned(lambda: warn_of_rounding(self.limits(dtype, condition=condition)), told)
        assert ("its condition number may be 1.0e+14" in words) is told

    @pytest.mark.parametrize(
        "dtype, widened, remedy",
        [
            (torch.float32, False, "Use float64 (model.double()), or raise the lower bound of the noise."),
            (torch.float32, True, "It is computed in float64 from here on, which takes longer and more memory."),
            (torch.float64, False, "Gradients may be off. Raise the lower bound of the noise."),
        ],
    )
    def test_remedies(self, dtype: torch.dtype, widened: bool, remedy: str) -> None:
        assert warned(lambda: warn_of_rounding(self.limits(dtype, 1.0), widened), True).endswith(remedy)

    @pytest.mark.parametrize("signal", [math.nan, math.inf])
    def test_a_kernel_that_is_not_finite(self, signal: float) -> None:
        with pytest.raises(InputError, match="finite kernel matrix"):
            warn_of_rounding(PrecisionLimits(10, torch.float32, signal, 1.0, 0.0))

    def test_they_are_those_of_the_diagonal(self) -> None:
        """n = 4, trace 16, eps = 2^-23: rounding = eps / 2 * trace / sqrt(n)."""
        limits = PrecisionLimits.of(torch.tensor([1.0, 7.0, 3.0, 5.0]), torch.float32)
        assert (limits.size, limits.signal, limits.condition) == (4, 4.0, 17.0)
        assert limits.rounding == 2.0**-21
        assert PrecisionLimits.of(torch.full((4,), 4.0), torch.float64).rounding == 2.0**-50

    def test_rounding_is_about_what_rounding_does(self) -> None:
        """The norm of what is lost where K is rounded to float32, for a kernel whose entries have no common factor."""
        system = system_of(smooth(torch.float64, signal=100.0, n=400), "dense")
        K = system.kernel_rows(torch.arange(400))
        lost = float(torch.linalg.matrix_norm(K.float().double() - K, 2))
        assert 0.3 < lost / system.limits(torch.float32).rounding < 1.0


def warned(call: Callable[[], bool], told: bool) -> str:
    """What was said, "" for nothing; that it was said is also what the call returns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert call() is told
    assert [one.category for one in caught] == [PrecisionWarning] * told
    return "".join(str(one.message) for one in caught)
