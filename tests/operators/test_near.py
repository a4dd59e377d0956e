"""Products by the tiles that count, against those of all of K in float64, on points that are hard for a list."""

from __future__ import annotations

import logging
import math

import gpytorch
import pytest
import torch
from torch import Tensor

from rtgp._kernels import KernelForm, read_kernel
from rtgp.errors import SettingError
from rtgp.operators import (
    DenseOperator,
    NearOperator,
    TiledOperator,
    choose,
    make,
    make_from_form,
)
from rtgp.operators import (
    _near as near,
)
from rtgp.operators._choose import still_serves
from rtgp.operators._near_plan import parts_of, plan_of
from rtgp.operators._order import DEFAULT, TileSettings

N = 400
SMALL = TileSettings(leaf=16, least=100)
NOISE = 0.01


def cluster_and_outliers(g: torch.Generator) -> Tensor:
    """One dense cluster, and points as far away as 10^6 of its widths."""
    x = torch.randn(N, 2, generator=g, dtype=torch.float64) * 0.05
    x[::20] = torch.randn(N // 20, 2, generator=g, dtype=torch.float64) * 30.0
    x[5] = 5e4
    return x


def line(g: torch.Generator) -> Tensor:
    t = torch.rand(N, 1, generator=g, dtype=torch.float64) * 60.0
    return torch.cat([t, 2.0 * t], dim=1)


def duplicates(g: torch.Generator) -> Tensor:
    """Every point many times."""
    return (torch.randn(40, 2, generator=g, dtype=torch.float64) * 10.0).repeat(10, 1)[:N]


def grid(_: torch.Generator) -> Tensor:
    a = torch.arange(20, dtype=torch.float64) * 1.3
    return torch.cartesian_prod(a, a)[:N]


def long_lengthscales(g: torch.Generator) -> Tensor:
    """Nothing is zero."""
    return torch.rand(N, 2, generator=g, dtype=torch.float64)


def many_inputs(g: torch.Generator) -> Tensor:
    return torch.randn(N, 9, generator=g, dtype=torch.float64) * 4.0


def scattered(g: torch.Generator) -> Tensor:
    return torch.rand(N, 2, generator=g, dtype=torch.float64) * 40.0


SETS = [cluster_and_outliers, line, duplicates, grid, long_lengthscales, many_inputs, scattered]
sets = pytest.mark.parametrize("points", SETS, ids=[points.__name__ for points in SETS])


def kernel(kind: str, d: int) -> gpytorch.kernels.Kernel:
    kernels = gpytorch.kernels
    if kind == "sum":
        return kernels.ScaleKernel(kernels.MaternKernel(0.5)) + kernels.ScaleKernel(kernels.RBFKernel(ard_num_dims=d))
    if kind == "matern32 of one input":
        return kernels.ScaleKernel(kernels.MaternKernel(1.5, active_dims=[1]))
    base = {
        "rbf": lambda: kernels.RBFKernel(ard_num_dims=d),
        "matern12": lambda: kernels.MaternKernel(0.5, ard_num_dims=d),
        "matern32": lambda: kernels.MaternKernel(1.5),
        "matern52": lambda: kernels.MaternKernel(2.5, ard_num_dims=d),
        "compact": lambda: kernels.PiecewisePolynomialKernel(q=1, ard_num_dims=d),
    }[kind]()
    return kernels.ScaleKernel(base)


KINDS = ["rbf", "matern12", "matern32", "matern52", "compact", "sum", "matern32 of one input"]
kinds = pytest.mark.parametrize("kind", KINDS)


def made(points, kind: str, dtype: torch.dtype = torch.float64) -> tuple[gpytorch.kernels.Kernel, Tensor]:
    x = points(torch.Generator().manual_seed(0))
    one = kernel(kind, x.shape[1]).to(dtype)
    for name, parameter in one.named_parameters():
        if name.endswith("raw_lengthscale"):
            parameter.data += torch.linspace(0.0, 0.5, parameter.numel(), dtype=dtype)
        else:
            parameter.data += 1.0
    return one, x.to(dtype)


def off(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300))


@sets
@kinds
@pytest.mark.parametrize("stored", [False, True], ids=["recomputed", "stored"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_products_are_those_of_all_of_K(points, kind: str, stored: bool, dtype: torch.dtype) -> None:
    """To 1e-6 of the norm in float32 and to 1e-12 in float64, where entries count down to that."""
    one, x = made(points, kind, dtype)
    form, exact = read_kernel(one, x), TiledOperator(read_kernel(one, x, torch.float64), 512)
    noise = 1e-7 if dtype == torch.float64 else NOISE
    got = NearOperator(form, least_noise=noise, stored=stored, settings=SMALL)
    v = torch.randn(N, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    full = TiledOperator(form, 512)  # rounds as well
    for some in (v, v[:, :1]):
        rounding = 0.0 if dtype == torch.float64 else off(full.matmul(some), exact.matmul(some.double()))
        assert off(got.matmul(some), exact.matmul(some.double())) <= tolerance + rounding
    assert off(got.wide_matmul(v), exact.wide_matmul(v.double())) <= tolerance
    new = torch.cat([x[:30] + 0.1, x[-3:] * 2.0])
    ours, theirs = got.cross(new), exact.cross(new)
    assert off(ours.matmul(v), theirs.matmul(v.double())) <= tolerance
    assert off(ours.transposed_matmul(v[:33]), theirs.transposed_matmul(v[:33].double())) <= tolerance
    index = torch.tensor([5, 0, N - 1])
    assert off(got.rows(index), exact.rows(index)) <= tolerance


@sets
@kinds
def test_derivatives_are_those_of_all_of_K(points, kind: str) -> None:
    one, x = made(points, kind)
    x = x.requires_grad_()
    form, exact = read_kernel(one, x), TiledOperator(read_kernel(one, x), 512)
    got = NearOperator(form, least_noise=1e-7, settings=SMALL)
    u, v = torch.randn(2, N, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = (*one.parameters(), x)
    pairs = [(u, v), (v, v)]
    for value, reference in zip(got.bilinears(pairs), exact.bilinears(pairs), strict=True):
        assert float(value.detach() - reference.detach()) == pytest.approx(0.0, abs=1e-10 * float(u.norm() * v.norm()))
        mine, theirs = (torch.autograd.grad(of, wanted, retain_graph=True) for of in (value, reference))
        for a, b in zip(mine, theirs, strict=True):
            assert float((a - b).norm()) <= 1e-8 * (1.0 + float(b.norm()))
    assert off(got.derivative_matmul(v), exact.derivative_matmul(v)) <= 1e-6


@sets
@kinds
def test_the_stated_bound_is_never_exceeded_and_A_stays_positive_definite(points, kind: str) -> None:
    """(largest row sum left out) x outputscale / noise, of K and of its derivative by every logarithm."""
    one, x = made(points, kind)
    form, noise = read_kernel(one, x), 1e-2
    got = NearOperator(form, least_noise=noise, settings=SMALL)
    whole, unit = form.block(slice(0, N), slice(0, N)), torch.eye(N, dtype=torch.float64)
    left_out = whole - got.matmul(unit)
    assert float(left_out.abs().sum(1).max()) / noise <= DEFAULT.bound * (1 + 1e-6) + 1e-9 / noise * float(whole.max())
    A = got.matmul(unit) / noise + unit
    least = float(torch.linalg.eigvalsh((A + A.T) / 2)[0])
    assert least >= 1.0 - DEFAULT.bound - 1e-10 / noise * float(whole.max())
    exact = TiledOperator(form, 512).derivative_matmul(unit)
    scales = torch.cat([torch.sigmoid(p.detach()).reshape(-1) for p in got.hyperparameters])
    values = torch.cat([torch.nn.functional.softplus(p.detach()).reshape(-1) for p in got.hyperparameters])
    by_log = (exact - got.derivative_matmul(unit)) * (values / scales)[:, None, None]
    assert float(by_log.abs().sum(2).max()) / noise <= DEFAULT.bound * (1 + 1e-6) + 1e-8 / noise * float(whole.max())


@kinds
def test_a_distance_that_is_too_short_breaks_the_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above has power."""
    one, x = made(scattered, kind)
    form = read_kernel(one, x)
    from rtgp.operators import _near_plan as near_plan

    right = near_plan._limits
    monkeypatch.setattr(near_plan, "_limits", lambda *args: tuple(0.1 * limit for limit in right(*args)))
    got = NearOperator(form, least_noise=1e-2, settings=SMALL)
    left_out = form.block(slice(0, N), slice(0, N)) - got.matmul(torch.eye(N, dtype=torch.float64))
    assert float(left_out.abs().sum(1).max()) / 1e-2 > DEFAULT.bound


@sets
def test_threads_change_no_bit(points) -> None:
    one, x = made(points, "matern32", torch.float32)
    v, threads = torch.randn(N, 11, generator=torch.Generator().manual_seed(3)), torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            got = NearOperator(read_kernel(one, x), least_noise=NOISE, settings=SMALL)
            value = got.bilinear(v, v)
            found.append((got.matmul(v), value, torch.autograd.grad(value, list(one.parameters()))))
    finally:
        torch.set_num_threads(threads)
    (a, b, c), (d, e, f) = found
    assert torch.equal(a, d)
    assert torch.equal(b, e)
    assert all(torch.equal(p, q) for p, q in zip(c, f, strict=True))


def scaled(lengthscale: float, dtype: torch.dtype = torch.float64) -> gpytorch.kernels.Kernel:
    one = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5)).to(dtype)
    one.base_kernel.lengthscale = lengthscale
    return one


def spread(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype) * 100.0


def test_a_plan_serves_while_lengthscales_stay_in_their_cell() -> None:
    x = spread(600)
    first = NearOperator(read_kernel(scaled(1.01), x), least_noise=NOISE, stored=True, settings=SMALL)
    plan = first.plan
    nearby = read_kernel(scaled(1.05), x)
    assert first.renew(nearby, NOISE)
    assert first.plan is plan
    v = torch.randn(600, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    new = NearOperator(nearby, least_noise=NOISE, stored=True, settings=SMALL)
    assert torch.equal(first.matmul(v), new.matmul(v))  # it depends on nothing earlier
    assert not first.renew(read_kernel(scaled(1.5), x), NOISE)
    assert not first.renew(nearby, 1e-3 * NOISE)
    assert not first.renew(read_kernel(scaled(1.05), x + 1.0), NOISE)
    assert not first.renew(read_kernel(scaled(1.05), x[:599]), NOISE)


def test_auto_takes_it_where_few_tiles_count_and_says_why() -> None:
    x = spread(5000)
    form = read_kernel(scaled(1.0), x)
    choice = choose(form, least_noise=NOISE)
    assert choice.operator == "near"
    assert choice.stored
    assert "of the tiles of K hold entries that count" in choice.reason
    assert "GiB may be used on cpu" in choice.reason
    tight = choose(form, least_noise=NOISE, available=0)
    assert tight.operator == "near"
    assert not tight.stored
    got = make_from_form(form, least_noise=NOISE)
    assert isinstance(got, NearOperator)
    assert got.stored
    assert got.share < DEFAULT.stored


@pytest.mark.parametrize(
    "lengthscale, n, noise", [(30.0, 5000, NOISE), (1.0, 3000, NOISE), (1.0, 5000, 0.0), (1.0, 5000, math.inf)]
)
def test_auto_stores_all_of_K_otherwise(lengthscale: float, n: int, noise: float) -> None:
    """Nothing is zero; few points; nobody said what is negligible."""
    assert choose(read_kernel(scaled(lengthscale), spread(n)), least_noise=noise, available=2**34).operator == "dense"


def test_a_kernel_without_a_known_bound_takes_the_dense_path() -> None:
    periodic = gpytorch.kernels.PeriodicKernel() + gpytorch.kernels.RBFKernel()
    form = read_kernel(periodic, spread(4096))
    assert parts_of(form, NOISE) is None
    assert choose(form, least_noise=NOISE, available=2**34).operator == "dense"
    with pytest.raises(SettingError, match="RBF, Matern or piecewise polynomial"):
        choose(form, "near", least_noise=NOISE)
    with pytest.raises(SettingError, match="and the noise"):
        make(scaled(1.0), spread(100), "near")


def test_a_compact_kernel_needs_no_noise() -> None:
    one = gpytorch.kernels.PiecewisePolynomialKernel(q=3).double()
    x = spread(500)
    got, v = make(one, x, "near"), torch.ones(500, 1, dtype=torch.float64)
    assert isinstance(got, NearOperator)
    assert got.share < 0.5
    assert off(got.matmul(v), DenseOperator(read_kernel(one, x)).matmul(v)) <= 1e-15


def test_a_stored_K_is_given_up_once_few_of_its_tiles_count() -> None:
    x = spread(5000, torch.float32)
    short, long = (read_kernel(scaled(scale, torch.float32), x) for scale in (1.0, 40.0))
    noise = torch.tensor([NOISE])
    held = TiledOperator(long, 512)
    assert still_serves(held, short, noise)  # not stored: it is chosen anew anyway
    dense = DenseOperator(long)
    assert still_serves(dense, long, noise)
    assert not still_serves(dense, short, noise)


def test_without_memory_for_its_tiles_it_computes_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    form = read_kernel(scaled(1.0), spread(300))

    def full(self: NearOperator, work: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, logger="rtgp"):
        patched.setattr(near.NearOperator, "_over_parts", full)
        got = NearOperator(form, least_noise=NOISE, stored=True, settings=SMALL)
    assert not got.stored
    assert "no memory left to store the tiles" in caplog.text
    v = torch.ones(300, 2, dtype=torch.float64)
    assert off(got.matmul(v), TiledOperator(form, 512).matmul(v)) <= 1e-4


def test_the_predicted_share_is_that_of_the_plan() -> None:
    """From a sample of rows of tiles, within 10%: below it a plan is made, above it none is."""
    form: KernelForm = read_kernel(scaled(2.0), spread(20_000))
    settings = TileSettings(sample=64)
    share = plan_of(form, NOISE, settings, share=1.0).share
    assert plan_of(form, NOISE, settings, share=1.1 * share) is not None
    assert plan_of(form, NOISE, settings, share=0.9 * share) is None
