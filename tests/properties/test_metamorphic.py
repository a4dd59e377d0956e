"""What must hold of the likelihood of every method when the data are changed in a known way, at given hyperparameters.

With the same seed where a relation holds path by path; otherwise for means over seeds. Six methods estimate the
likelihood of a model; SVGP and POE, which are models of their own, are in test_metamorphic_models.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rtgp
import rtgp._traces.probes as probes
from properties.metamorphic import N, Setting, assert_same, evaluate, example, mean_and_error

SIX = {
    "cholesky": rtgp.Cholesky(),
    "cg": rtgp.CG(iterations=25, probes=4),
    "rr-cg": rtgp.RRCG(probes=4),
    "rff": rtgp.RFF(features=20),
    "ss-rff": rtgp.SSRFF(minimum=8, step=8),
    "sggp": rtgp.SGGP(neighbours=6, centres=20),
}
# Rounding grows with the number of iterations of CG, whose directions lose their conjugacy.
TOLERANCE = {"cg": 1e-7, "rr-cg": 1e-7}
SMOOTHNESS = {"rbf": math.inf, "matern12": 0.5, "matern32": 1.5, "matern52": 2.5}

methods = pytest.mark.parametrize("name", SIX)
kernels = pytest.mark.parametrize("nu", SMOOTHNESS.values(), ids=SMOOTHNESS)


def tolerance(name: str) -> float:
    return TOLERANCE.get(name, 1e-9)


@methods
@kernels
def test_rescaling_and_shifting_y(name: str, nu: float) -> None:
    """y -> c y + a with outputscale and noise times c^2, mean -> c mean + a: the density is that of y over c^n."""
    setting, (c, a) = example(nu=nu), (12.0, 7.0)
    changed = setting.changed(y=c * setting.y + a, outputscale=c**2 * 0.8, noise=c**2 * 0.1, mean=c * setting.mean + a)
    shift = N * math.log(c)
    assert_same(evaluate(SIX[name], changed), evaluate(SIX[name], setting), tolerance(name), shift, 1 / c)


@methods
@kernels
def test_shifting_x(name: str, nu: float) -> None:
    """Stationary kernels see differences alone. 100 times the spread of the data: two digits are lost, no more."""
    setting = example(nu=nu)
    changed = setting.changed(x=setting.x + torch.tensor([100.0, -30.0, 5.0], dtype=torch.float64))
    assert_same(evaluate(SIX[name], changed), evaluate(SIX[name], setting), 100 * tolerance(name))


@methods
@kernels
def test_scaling_x_with_its_lengthscales(name: str, nu: float) -> None:
    """One factor for all columns; a factor for each is another matter for sgGP, whose neighbours are those of x."""
    setting = example(nu=nu)
    factor = torch.full((3,), 37.0) if name == "sggp" else torch.tensor([1e-3, 37.0, 1e4])
    changed = setting.changed(x=setting.x * factor.double(), lengthscale=setting.lengthscale * factor.double())
    assert_same(evaluate(SIX[name], changed), evaluate(SIX[name], setting), tolerance(name))


def test_scaling_one_column_changes_the_neighbours_of_sggp() -> None:
    """Why the relation above is a weaker one for sgGP."""
    setting = example()
    factor = torch.tensor([1e-3, 37.0, 1e4], dtype=torch.float64)
    changed = setting.changed(x=setting.x * factor, lengthscale=setting.lengthscale * factor)
    found, wanted = evaluate(SIX["sggp"], changed), evaluate(SIX["sggp"], setting)
    assert abs(found.loss - wanted.loss) > 0.1


def permuted(setting: Setting, order: Tensor) -> Setting:
    noise = setting.noise[order] if isinstance(setting.noise, Tensor) else setting.noise
    return setting.changed(x=setting.x[order], y=setting.y[order], noise=noise)


@methods
@kernels
def test_permuting_rows(name: str, nu: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Path by path, with greedy pivots (and a noise for each row: where all are equal, the first pivot is the first
    row). The signs of a probe belong to rows and are permuted with them; sgGP takes all points as centres, since the
    order in which it draws some is that of the rows."""
    setting, order = example(nu=nu), torch.randperm(N, generator=torch.Generator().manual_seed(5))
    setting = setting.changed(noise=torch.linspace(0.05, 0.2, N, dtype=torch.float64))
    method = {
        "rr-cg": rtgp.RRCG(probes=4, preconditioner=rtgp.PivotedCholesky(6, "greedy")),
        "sggp": rtgp.SGGP(neighbours=6),
    }.get(name, SIX[name])
    wanted = evaluate(method, setting)
    draw = probes.random_signs
    monkeypatch.setattr(probes, "random_signs", lambda *arguments: draw(*arguments)[order])
    assert_same(evaluate(method, permuted(setting, order)), wanted, tolerance(name))


def z_scores(method: rtgp.RRCG | rtgp.CG, changed: Setting, setting: Setting, loss: float, seeds: int = 25) -> Tensor:
    """Of value and gradients, by which the means over seeds differ, seeds of one being others than those of the
    other."""
    first, first_error = mean_and_error([evaluate(method, changed, seed).vector for seed in range(seeds)])
    second, second_error = mean_and_error([evaluate(method, setting, 1000 + seed).vector for seed in range(seeds)])
    difference = first - second
    difference[0] -= loss
    return difference / (first_error.square() + second_error.square()).sqrt()


# |t| > 6 with 24 degrees of freedom or more: below 4e-6 for each of at most 6 numbers, 2e-5 for a test.
ALARM = 6.0


@pytest.mark.parametrize("name", ["cg", "rr-cg"])
def test_permuting_rows_changes_no_mean(name: str) -> None:
    """As they are, with random pivots and with probes that do not follow the rows; false alarm 2e-5."""
    setting, order = example(), torch.randperm(N, generator=torch.Generator().manual_seed(5))
    assert float(z_scores(SIX[name], permuted(setting, order), setting, 0.0).abs().max()) < ALARM


def repeated(setting: Setting, row: int = 7, step: float = 0.3) -> tuple[Setting, Setting, float]:
    """A row measured twice, `step` apart; the same as one measurement of their mean with half of the noise; and what
    the second loss lacks: -log N(step; 0, 2 noise)."""
    noise = torch.linspace(0.05, 0.2, N, dtype=torch.float64)
    twice = setting.changed(
        x=torch.cat([setting.x, setting.x[row : row + 1]]),
        y=torch.cat([setting.y, setting.y[row : row + 1] + step]),
        noise=torch.cat([noise, noise[row : row + 1]]),
    )
    y, merged = setting.y.clone(), noise.clone()
    y[row] += step / 2
    merged[row] /= 2
    variance = 2.0 * float(noise[row])
    return twice, setting.changed(y=y, noise=merged), 0.5 * (math.log(2 * math.pi * variance) + step**2 / variance)


EXACTLY = {
    "cholesky": rtgp.Cholesky(),
    # Frequencies of a seed make a kernel like any other; the ladder is the same for 60 and 61 points.
    "rff": SIX["rff"],
    "ss-rff": SIX["ss-rff"],
}


@pytest.mark.parametrize("name", EXACTLY)
@kernels
def test_duplicating_a_point_halves_its_noise(name: str, nu: float) -> None:
    twice, merged, lacking = repeated(example(nu=nu))
    assert_same(evaluate(EXACTLY[name], twice), evaluate(EXACTLY[name], merged), 1e-9, lacking)


def test_duplicating_a_point_halves_its_noise_for_sggp_with_sets_of_all_points() -> None:
    """With fewer neighbours it does not: the twin takes the place of a neighbour, and sets count as independent."""
    twice, merged, lacking = repeated(example())
    found, wanted = (evaluate(rtgp.SGGP(neighbours=len(one.y) - 1), one) for one in (twice, merged))
    assert_same(found, wanted, 1e-9, lacking)
    found, wanted = (evaluate(rtgp.SGGP(neighbours=6), one) for one in (twice, merged))
    assert abs(found.loss - wanted.loss - lacking) > 1e-3


# Probes of the preconditioner's covariance scatter little.
CONVERGED = {
    "cg": rtgp.CG(500, 4, rtgp.PivotedCholesky(40), "preconditioner"),
    "rr-cg": rtgp.RRCG(probes=4, preconditioner=rtgp.PivotedCholesky(40)),
}


@pytest.mark.parametrize("name", CONVERGED)
def test_duplicating_a_point_halves_its_noise_in_the_mean(name: str) -> None:
    """One more row is one more random sign, so that nothing holds path by path; false alarm 2e-5. CG without
    truncation: what is cut off by another differs for 60 and 61 points."""
    twice, merged, lacking = repeated(example())
    assert float(z_scores(CONVERGED[name], twice, merged, lacking).abs().max()) < ALARM


@pytest.mark.parametrize("name", CONVERGED)
def test_the_statistical_check_can_fail(name: str) -> None:
    """Power, at twice the bar of that false alarm: the noise of the merged point is left as it was."""
    twice, merged, lacking = repeated(example())
    assert isinstance(merged.noise, Tensor)
    wrong = merged.noise.clone()
    wrong[7] *= 2
    assert float(z_scores(CONVERGED[name], twice, merged.changed(noise=wrong), lacking).abs().max()) > 2 * ALARM


@pytest.mark.parametrize("name", ["cg", "rr-cg"])
def test_the_data_term_of_a_converged_run_follows_the_duplicate_exactly(name: str) -> None:
    """It has no probe in it: y^T K_hat^-1 y grows by step^2 / (2 noise)."""
    twice, merged, _ = repeated(example())
    method = rtgp.CG(iterations=500, probes=1) if name == "cg" else rtgp.RRCG(rtgp.truncation.Tabulated([1.0] * 500), 1)
    assert isinstance(twice.noise, Tensor)
    found, wanted = (evaluate(method, one) for one in (twice, merged))
    assert found.quadratic == pytest.approx(wanted.quadratic + 0.3**2 / (2 * float(twice.noise[7])), rel=1e-9)
    assert found.mean == pytest.approx(wanted.mean, rel=1e-6, abs=1e-6)


@methods
def test_a_method_is_blind_to_the_order_of_columns(name: str) -> None:
    """With their lengthscales. Frequencies of RFF and SS-RFF are drawn column by column: in the mean only, not here."""
    if name in ("rff", "ss-rff"):
        pytest.skip("frequencies belong to columns: another order is another draw")
    setting, order = example(), torch.tensor([2, 0, 1])
    changed = setting.changed(x=setting.x[:, order], lengthscale=setting.lengthscale[order])
    found, wanted = evaluate(SIX[name], changed), evaluate(SIX[name], setting)
    back = torch.argsort(order)
    kernel = torch.cat([found.kernel[:3][back], found.kernel[3:]])
    torch.testing.assert_close(kernel, wanted.kernel, rtol=0, atol=tolerance(name) * float(wanted.vector.abs().max()))
    assert found.loss == pytest.approx(wanted.loss, rel=tolerance(name), abs=tolerance(name))
