"""Points that make neighbours awkward: right answers all the same, or one sentence.

Where an estimate is random, it is averaged over `DRAWS` calls and compared with Cholesky. The mean of 40 is beyond 5
standard errors with a false-alarm probability of 1.3e-5 for each component (Student's t), that of 12, on the grid,
with 4e-4: about 1.5% over the 400 components of all tests.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

import gp_models
import rtgp
from models import gradient
from rtgp.errors import RTGPError, SettingError

DRAWS = 40
METHODS = {
    "default": rtgp.RRCG(),
    "neighbours": rtgp.RRCG(preconditioner=rtgp.Neighbours(8)),
    "more neighbours than points": rtgp.RRCG(preconditioner=rtgp.Neighbours(5000)),
    "both": rtgp.RRCG(preconditioner=rtgp.LowRankAndNeighbours(6, 8)),
    "more of both than points": rtgp.RRCG(preconditioner=rtgp.LowRankAndNeighbours(5000, 5000)),
}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
usual = pytest.mark.parametrize("method", [METHODS["default"], METHODS["neighbours"]], ids=["default", "neighbours"])


def problem(x: Tensor, kernel: Kernel | None = None) -> gp_models.Model:
    generator = torch.Generator().manual_seed(1)
    y = torch.sin(x.double().sum(1)) + 0.3 * torch.randn(len(x), dtype=torch.float64, generator=generator)
    kernel = ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=x.shape[1])) if kernel is None else kernel
    return gp_models.make(x, y.to(x), kernel=kernel)


def both(model: gp_models.Model, method: object, generator: torch.Generator | None = None) -> Tensor:
    """Gradient and value of one call."""
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator)
    return calls(model, mll, 1)[0]


def calls(model: gp_models.Model, mll: rtgp.MarginalLogLikelihood, count: int) -> Tensor:
    found = [gradient(model, mll) for _ in range(count)]
    return torch.stack([torch.cat([g, torch.tensor([v], dtype=torch.float64)]) for g, v in found])


def assert_right(model: gp_models.Model, method: object, draws: int = DRAWS) -> None:
    exact = both(model, "cholesky")
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(3))
    found = calls(model, mll, draws)
    assert bool(torch.isfinite(found).all())
    error = found.std(0) / draws**0.5
    allowed = 5.0 * error + 1e-6 * exact.abs().clamp_min(1.0)
    assert bool(((found.mean(0) - exact).abs() < allowed).all()), (found.mean(0), exact, error)


def points(n: int, d: int = 2, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@methods
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_few_points(n: int, method: rtgp.RRCG) -> None:
    assert_right(problem(points(n)), method)


@methods
def test_more_neighbours_than_points(method: rtgp.RRCG) -> None:
    assert_right(problem(points(20)), method)


@pytest.mark.parametrize("n", [2, 20])
def test_all_neighbours_leave_nothing_to_chance(n: int) -> None:
    """P = A, and all of the control variate is taken: one call is exact. Frozen draws have none: their value is."""
    model, method = problem(points(n)), METHODS["more neighbours than points"]
    exact = both(model, "cholesky")
    torch.testing.assert_close(both(model, method, torch.Generator().manual_seed(0)), exact, rtol=0, atol=1e-9)
    frozen = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(0), "frozen")
    torch.testing.assert_close(calls(model, frozen, 1)[0, -1], exact[-1], rtol=0, atol=1e-9)


@methods
def test_all_points_equal(method: rtgp.RRCG) -> None:
    assert_right(problem(torch.full((50, 2), 0.3, dtype=torch.float64)), method)


@methods
def test_two_places_only(method: rtgp.RRCG) -> None:
    assert_right(problem(torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64).repeat(30, 1)), method)


@usual
@pytest.mark.parametrize("base", [MaternKernel(nu=0.5), RBFKernel()], ids=["matern12", "rbf"])
def test_ties_on_a_grid(method: rtgp.RRCG, base: Kernel) -> None:
    """Thousands of pairs at the same distance, and every place taken four times."""
    side = torch.arange(16, dtype=torch.float64)
    x = torch.cartesian_prod(side, side).repeat(4, 1)
    assert_right(problem(x, ScaleKernel(base)), method, 12)


@usual
def test_sixty_columns(method: rtgp.RRCG) -> None:
    assert_right(problem(3.0 * points(150, 60)), method)


@methods
def test_a_variance_of_zero_somewhere(method: rtgp.RRCG) -> None:
    """A linear kernel and points at the origin: they have no correlation with anything."""
    x = points(40) - 0.5
    x[:3] = 0.0
    assert_right(problem(x, ScaleKernel(LinearKernel())), method)


@methods
def test_a_variance_of_zero_everywhere(method: rtgp.RRCG) -> None:
    assert_right(problem(torch.zeros(20, 2, dtype=torch.float64), ScaleKernel(LinearKernel())), method)


@usual
def test_hardly_any_noise_in_float32(method: rtgp.RRCG) -> None:
    """The answer is finite and near, or one sentence tells why there is none."""
    x = points(60).float()
    x[30:] = x[:30]
    model = problem(x, ScaleKernel(RBFKernel()))
    model.likelihood.noise = 1e-4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rtgp.errors.PrecisionWarning)
        found = attempt(model, method)
    good = found.endswith(".") if isinstance(found, str) else bool(torch.isfinite(found).all())
    assert good


def attempt(model: gp_models.Model, method: rtgp.RRCG) -> Tensor | str:
    """Gradient and value, or what the error says."""
    try:
        return both(model, method, torch.Generator().manual_seed(0))
    except RTGPError as error:
        return str(error)


@pytest.mark.parametrize("count", [0, -1, 2.5, "a", True, [3]], ids=repr)
@pytest.mark.parametrize("settings", [rtgp.Neighbours, lambda count: rtgp.LowRankAndNeighbours(5, count)])
def test_a_count_that_is_none(settings, count: object) -> None:
    with pytest.raises(SettingError, match=r"must be a positive integer or None\. Got ") as caught:
        settings(count)
    assert str(caught.value).endswith(" instead.")


@pytest.mark.parametrize("rank", [0, "a", True], ids=repr)
def test_a_rank_that_is_none(rank: object) -> None:
    with pytest.raises(SettingError, match="'rank' parameter of LowRankAndNeighbours must be a positive integer"):
        rtgp.LowRankAndNeighbours(rank)


@pytest.mark.parametrize(
    "wrong", [8, "neighbours", rtgp.Neighbours, object()], ids=["8", "a name", "a class", "object"]
)
@pytest.mark.parametrize("method", [rtgp.RRCG, rtgp.CG])
def test_a_preconditioner_that_is_none(method, wrong: object) -> None:
    with pytest.raises(SettingError, match="preconditioner") as caught:
        method(preconditioner=wrong)
    assert "\n" not in str(caught.value)
