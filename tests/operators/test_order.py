"""Points in leaves, and the tiles of K that may be left out: against all pairs of points."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch
from torch import Tensor

import triton_mode
from rtgp._kernels import read_kernel
from rtgp._kernels.formulas import MATERN, RBF, RadialFormula, negligible_beyond, squared_distances
from rtgp.operators import TiledOperator, TritonOperator
from rtgp.operators._gpu import Tuning
from rtgp.operators._order import TileSettings, boxed, leaves_of, near_share, negligible_entry, tile_list

FORMULAS = [RBF, *MATERN.values()]
formulas = pytest.mark.parametrize("formula", FORMULAS, ids=[f.name for f in FORMULAS])


def scattered(generator: torch.Generator) -> Tensor:
    return 30.0 * torch.rand(500, 2, generator=generator, dtype=torch.float64)


def cluster_and_outliers(generator: torch.Generator) -> Tensor:
    near = torch.randn(450, 3, generator=generator, dtype=torch.float64)
    return torch.cat([near, 1e3 * torch.randn(21, 3, generator=generator, dtype=torch.float64)])


def line(generator: torch.Generator) -> Tensor:
    along = 200.0 * torch.rand(300, 1, generator=generator, dtype=torch.float64)
    return torch.cat([along, 0.5 * along, torch.zeros_like(along)], dim=1)


def duplicates(generator: torch.Generator) -> Tensor:
    few = 50.0 * torch.rand(7, 2, generator=generator, dtype=torch.float64)
    return few[torch.randint(7, (400,), generator=generator)]


def grid(generator: torch.Generator) -> Tensor:
    axis = torch.arange(20, dtype=torch.float64)
    return torch.cartesian_prod(axis, 2.0 * axis)


def one(generator: torch.Generator) -> Tensor:
    return torch.zeros(1, 2, dtype=torch.float64)


POINTS = [scattered, cluster_and_outliers, line, duplicates, grid, one]
points = pytest.mark.parametrize("make", POINTS, ids=[make.__name__ for make in POINTS])


def listed(z: Tensor, size: int, limit: float, height: int, width: int) -> Tensor:
    """(n, n): whether the list has the tile of a pair of points."""
    leaves, n = leaves_of(z, size), z.shape[0]
    tiles = tile_list(leaves, leaves, limit, height, width)
    rows = len(tiles.begins) - 1
    wide = -(-leaves.count // width)
    present = torch.zeros(rows, wide, dtype=torch.bool)
    for row in range(rows):
        present[row, tiles.columns[tiles.begins[row] : tiles.begins[row + 1]].long()] = True
    assert sorted(tiles.turn.tolist()) == list(range(rows))
    lengths = (tiles.begins[1:] - tiles.begins[:-1])[tiles.turn.long()]
    assert (lengths[:-1] >= lengths[1:]).all()
    assert tiles.share == pytest.approx(float(present.double().mean()))
    pairs = present.repeat_interleave(height * size, 0)[:n].repeat_interleave(width * size, 1)[:, :n]
    found = torch.zeros(n, n, dtype=torch.bool)
    found[leaves.order[:, None], leaves.order] = pairs
    return found


@points
@pytest.mark.parametrize("size", [1, 16, 64])
def test_leaves_hold_every_point_once_and_boxes_hold_their_points(make, size: int) -> None:
    z = make(torch.Generator().manual_seed(0))
    leaves = leaves_of(z, size)
    assert sorted(leaves.order.tolist()) == list(range(len(z)))
    assert leaves.count == -(-len(z) // size)
    for leaf in range(leaves.count):
        own = z[leaves.order[leaf * size : (leaf + 1) * size]]
        assert torch.equal(own.amin(0), leaves.low[leaf])
        assert torch.equal(own.amax(0), leaves.high[leaf])
    moved = boxed(2.0 * z, leaves.order, size)
    assert torch.equal(moved.low, 2.0 * leaves.low)


@formulas
@pytest.mark.parametrize("entry", [1e-2, 1e-6, 1e-12])
def test_beyond_the_limit_nothing_counts(formula: RadialFormula, entry: float) -> None:
    limit = negligible_beyond(formula, entry)
    beyond = limit * torch.logspace(0.0, 3.0, 2000, dtype=torch.float64)
    value, slope = formula.both(beyond.clone())
    assert float(value.max()) <= entry
    assert float((2.0 * beyond * slope.abs()).max()) <= entry
    value, slope = formula.both(torch.tensor([0.99 * limit], dtype=torch.float64))  # and it is not generous
    assert limit <= 8.0 or max(float(value), 2.0 * limit * abs(float(slope))) > 0.9 * entry


@formulas
def test_where_nothing_is_negligible_there_is_no_limit(formula: RadialFormula) -> None:
    assert negligible_beyond(formula, 0.0) == math.inf


@points
@formulas
@pytest.mark.parametrize("height, width", [(1, 1), (1, 2), (3, 1)])
def test_what_is_left_out_is_within_the_bound(make, formula: RadialFormula, height: int, width: int) -> None:
    z = make(torch.Generator().manual_seed(1))
    scale, noise, n = 3.0, 0.02, len(z)
    entry = negligible_entry(n, scale, noise)
    left_out = ~listed(z, 16, negligible_beyond(formula, entry), height, width)
    value, slope = formula.both(squared_distances(z, z))
    k = scale * value.masked_fill(~left_out, 0.0) / noise
    derivative = 2.0 * scale * (slope.abs() * squared_distances(z, z)).masked_fill(~left_out, 0.0) / noise
    assert float(k.sum(1).max()) <= TileSettings().bound
    assert float(derivative.sum(1).max()) <= TileSettings().bound
    assert not left_out.diagonal().any()


def test_a_smaller_limit_would_break_the_bound() -> None:
    """The test above has power: with boxes a third as far the rows left out add up to too much."""
    z = scattered(torch.Generator().manual_seed(1))
    entry = negligible_entry(len(z), 1.0, 1.0)
    left_out = ~listed(z, 4, negligible_beyond(RBF, entry) / 9.0, 1, 1)
    value = RBF.value(squared_distances(z, z)).masked_fill(~left_out, 0.0)
    assert float(value.sum(1).max()) > TileSettings().bound


@points
def test_the_share_is_that_of_the_list(make) -> None:
    z = make(torch.Generator().manual_seed(2))
    leaves = leaves_of(z, 16)
    few = TileSettings(entries=2 * leaves.count)  # in several blocks
    assert near_share(leaves, leaves, 9.0, few) == pytest.approx(tile_list(leaves, leaves, 9.0, settings=few).share)


@pytest.mark.parametrize("noise, scale", [(0.0, 1.0), (math.nan, 1.0), (1.0, math.inf), (1.0, 0.0), (1.0, math.nan)])
def test_nothing_is_negligible_beside_what_is_no_number(noise: float, scale: float) -> None:
    assert negligible_entry(100, scale, noise) == 0.0


SMALL = Tuning(block_rows=16, block_columns=32, gradient_rows=32, gradient_columns=16)


def kernel(formula: RadialFormula, lengthscale: float) -> gpytorch.kernels.Kernel:
    smoothness = {found.name: nu for nu, found in MATERN.items()}
    base = gpytorch.kernels.RBFKernel() if formula is RBF else gpytorch.kernels.MaternKernel(smoothness[formula.name])
    scaled = gpytorch.kernels.ScaleKernel(base)
    scaled.outputscale, scaled.base_kernel.lengthscale = 2.0, lengthscale
    return scaled


@triton_mode.needs_triton
@pytest.mark.parametrize("device", [triton_mode.CPU, triton_mode.GPU])
@formulas
@pytest.mark.parametrize("d", [1, 2, 5])
def test_products_of_a_list_are_those_of_all_tiles(formula: RadialFormula, d: int, device: str) -> None:
    """Twelve clusters far from each other, in a random order."""
    generator = torch.Generator().manual_seed(3)
    n = 190
    x = 40.0 * torch.randint(12, (n, 1), generator=generator) + torch.rand(n, d, generator=generator)
    x, u, v = (t.to(device) for t in (x, *torch.randn(2, n, 3, generator=generator)))
    ours, theirs = kernel(formula, 1.0).to(device), kernel(formula, 1.0).double().to(device)
    got = TritonOperator(read_kernel(ours, x), tuning=SMALL, negligible=negligible_entry(n, 2.0, 1e-2))
    wanted = TiledOperator(read_kernel(theirs, x.double(), torch.float64), 128)
    assert got.share < 0.5
    assert TritonOperator(read_kernel(ours, x), tuning=SMALL).share == 1.0

    def close(a: Tensor, b: Tensor) -> bool:
        return float((a.double() - b).norm()) <= 1e-5 * float(b.norm())

    assert close(got.matmul(v), wanted.matmul(v.double()))
    assert close(got.wide_matmul(v), wanted.wide_matmul(v.double()))
    assert close(got.derivative_matmul(v), wanted.derivative_matmul(v.double()))
    # By the points, not by the lengthscale: that is a small difference of large terms.
    found = torch.autograd.grad(got.bilinear(u, v), got.form.tensors)
    exact = torch.autograd.grad(wanted.bilinear(u.double(), v.double()), wanted.form.tensors)
    assert all(close(one_found, one_exact) for one_found, one_exact in zip(found, exact, strict=True))
    new = x[:20] + 0.1
    mine, reference = got.cross(new), wanted.cross(new.double())
    assert close(mine.matmul(v), reference.matmul(v.double()))
    assert close(mine.transposed_matmul(v[:20]), reference.transposed_matmul(v[:20].double()))
