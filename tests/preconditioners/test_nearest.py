"""The nearest earlier points, against a loop over all pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch import kernels
from torch import Tensor

import reference
from rtgp._kernels import KernelForm, read_covariance, read_kernel
from rtgp._preconditioners.leaf_search import LeafSettings
from rtgp._preconditioners.nearest import DEFAULT, most_correlated, nearest_among, nearest_earlier
from rtgp._preconditioners.neighbour_search import SearchSettings
from rtgp.operators._order import gaps, leaves_of

BLOCKS = replace(DEFAULT, tree_cost=1.0, entries=2000)
TREE = replace(DEFAULT, tree_cost=0.0, first=20)
SMALL_LEAVES = LeafSettings(devices=("cpu",), size=8, first=4, more=2, share=0.9, least=20, entries=5000)
LEAVES = replace(DEFAULT, leaves=SMALL_LEAVES)
WAYS = {"blocks": BLOCKS, "trees": TREE, "leaves": LEAVES, "as it likes": DEFAULT}


def stationary(x: Tensor, nu: float = 1.5) -> KernelForm:
    kernel = kernels.ScaleKernel(kernels.MaternKernel(nu=nu, ard_num_dims=x.shape[1])).double()
    kernel.base_kernel.lengthscale = torch.linspace(0.5, 2.0, x.shape[1])
    return read_kernel(kernel, x)


def gaussian(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def permutation(n: int, seed: int = 1) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def check_earlier(found: Tensor, order: Tensor) -> None:
    """Each once, all earlier, as many as there are, and nobody after a -1."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    for point, row in enumerate(found):
        known = row[row >= 0]
        assert len(known.unique()) == len(known) == min(found.shape[1], int(place[point]))
        assert bool((row[: len(known)] >= 0).all())
        assert bool((place[known] < place[point]).all())


def distances(z: Tensor, found: Tensor) -> np.ndarray:
    """Infinite for -1."""
    far = (z[found.clamp_min(0)] - z[:, None]).square().sum(-1).sqrt()
    return far.masked_fill(found < 0, torch.inf).numpy()


POINTS = {
    "one column": gaussian(300, 1),
    "two columns": gaussian(700, 2),
    "nine columns": gaussian(300, 9),
    "sixty columns": gaussian(150, 60),
    "all equal": torch.full((400, 3), 0.3, dtype=torch.float64),
    "all equal, many columns": torch.full((200, 12), 0.3, dtype=torch.float64),
    "integer grid": torch.randint(0, 4, (800, 2), generator=torch.Generator().manual_seed(2)).double(),
    "integer grid, many columns": torch.randint(0, 2, (300, 8), generator=torch.Generator().manual_seed(2)).double(),
    "pairs, far from the others": torch.cat([gaussian(100, 7), gaussian(100, 7) + 1e-7, 1e4 + gaussian(50, 7)]),
    "one point": gaussian(1, 3),
    "two points": gaussian(2, 3),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("name", POINTS)
def test_exact(name: str, count: int, way: str) -> None:
    x = POINTS[name]
    form, order = stationary(x), permutation(len(x))
    found = nearest_earlier(form, order, count, WAYS[way])
    assert found.shape == (len(x), count)
    assert found.dtype == torch.int64
    check_earlier(found, order)
    z = form.form.z.detach()
    wanted = reference.nearest_earlier_distances(z.numpy(), order.numpy(), count)
    np.testing.assert_allclose(distances(z, found), wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(found, nearest_earlier(form, order, count, WAYS[way]))


@pytest.mark.parametrize("way", WAYS)
def test_more_neighbours_than_points(way: str) -> None:
    form, order = stationary(gaussian(30, 2)), permutation(30)
    found = nearest_earlier(form, order, 50, WAYS[way])
    assert found.shape == (30, 50)
    check_earlier(found, order)


def correlations(form: KernelForm) -> Tensor:
    K = form.block(slice(0, form.size), slice(0, form.size)).abs()
    scale = K.diagonal().clamp_min(1e-300).rsqrt()
    return K * scale[:, None] * scale


OTHERS = {
    "sum": lambda: kernels.RBFKernel(active_dims=[0]) + kernels.ScaleKernel(kernels.MaternKernel(nu=0.5)),
    "product": lambda: kernels.RBFKernel(active_dims=[0]) * kernels.MaternKernel(nu=1.5, active_dims=[1]),
    "periodic": lambda: kernels.ScaleKernel(kernels.PeriodicKernel()),
    "linear": lambda: kernels.LinearKernel(),
}


def check_correlations(form: KernelForm, found: Tensor, order: Tensor) -> None:
    wanted = correlations(form)
    for place, point in enumerate(order):
        known = found[point][found[point] >= 0]
        best = wanted[point, order[:place]].sort(descending=True).values[: found.shape[1]]
        torch.testing.assert_close(wanted[point, known], best, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_by_correlation(name: str) -> None:
    x = gaussian(200, 2)
    x[7] = 0.0  # the linear kernel has no variance there
    form, order = read_kernel(OTHERS[name]().double(), x), permutation(200)
    found = nearest_earlier(form, order, 6, BLOCKS)
    check_earlier(found, order)
    check_correlations(form, found, order)


def test_a_kernel_summed_over_a_batch() -> None:
    kernel = kernels.RBFKernel(batch_shape=torch.Size([2])).double()
    form = read_covariance(kernel(gaussian(60, 2).mT.unsqueeze(-1)).sum(-3))
    order = permutation(60)
    check_correlations(form, nearest_earlier(form, order, 4), order)


@pytest.mark.parametrize("name", ["sum", "product"])
def test_candidates_by_coordinates_find_nearly_the_same(name: str) -> None:
    form, order = read_kernel(OTHERS[name]().double(), gaussian(600, 2)), permutation(600)
    few = SearchSettings(few_points=1)
    found, best = nearest_earlier(form, order, 8, few), nearest_earlier(form, order, 8)
    check_earlier(found, order)
    shares = [len(set(a.tolist()) & set(b.tolist())) / 8 for a, b in zip(found, best, strict=True)]
    assert np.mean(shares) > 0.9


@pytest.mark.parametrize("way", WAYS)
def test_nearest_among_others(way: str) -> None:
    x = gaussian(500, 2)
    form = stationary(x)
    among, queries = torch.arange(0, 400), torch.arange(400, 500)
    found = nearest_among(form, queries, among, 7, WAYS[way])
    z = form.form.z.detach()
    wanted = torch.cdist(z[queries], z[among]).topk(7, largest=False)
    torch.testing.assert_close((z[found] - z[queries, None]).norm(dim=-1), wanted.values, rtol=1e-6, atol=1e-7)
    assert bool((found < 400).all())
    assert nearest_among(form, queries[:2], among[:3], 5, WAYS[way]).tolist()[0][3:] == [-1, -1]
    assert nearest_among(form, queries[:0], among, 5).shape == (0, 5)


def test_what_a_low_rank_leaves_decides() -> None:
    """The largest correlations of A - L L^T among the candidates."""
    form, order = stationary(gaussian(80, 2)), permutation(80)
    scale = torch.full((80,), 3.0, dtype=torch.float64)
    K = 9.0 * form.block(slice(0, 80), slice(0, 80))
    low_rank = K[:, :5] @ torch.linalg.cholesky(torch.linalg.inv(K[:5, :5]))
    rest = (K - low_rank @ low_rank.T + torch.eye(80, dtype=torch.float64)).abs()
    rest = rest / (rest.diagonal()[:, None] * rest.diagonal()).sqrt()
    candidates = nearest_earlier(form, order, 20)
    found = most_correlated(form, torch.arange(80), candidates, 4, scale, low_rank)
    for point, row in enumerate(found):
        known = candidates[point][candidates[point] >= 0]
        best = rest[point, known].sort(descending=True).values[:4]
        torch.testing.assert_close(rest[point, row[row >= 0]], best, rtol=1e-8, atol=1e-12)


def test_trees_where_they_pay() -> None:
    assert DEFAULT.prefers_tree(gaussian(5000, 2), 32)
    assert not DEFAULT.prefers_tree(gaussian(5000, 26), 32)
    thin = gaussian(5000, 26) * torch.tensor([1.0, 1.0, *[1e-3] * 24])
    assert DEFAULT.prefers_tree(thin, 32)  # its effective dimension is two
    assert not DEFAULT.prefers_tree(gaussian(100, 2), 32)


@pytest.mark.parametrize("way", WAYS)
def test_some_points_only(way: str) -> None:
    form, order = stationary(gaussian(500, 2)), permutation(500)
    points = torch.tensor([7, 3, 499, 120])
    found = nearest_earlier(form, order, 9, WAYS[way], points)
    assert torch.equal(found, nearest_earlier(form, order, 9, WAYS[way])[points])


def test_leaves_serve_most_of_what_is_asked_in_two_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All distances of a few points only: the first ones, which have few before them."""
    from rtgp._preconditioners import neighbour_search

    asked = []
    by_blocks = neighbour_search._by_blocks

    def counted(z: Tensor, limits: Tensor, *others: object) -> Tensor:
        asked.append(len(limits))
        return by_blocks(z, limits, *others)

    monkeypatch.setattr(neighbour_search, "_by_blocks", counted)
    settings = replace(DEFAULT, leaves=replace(SMALL_LEAVES, size=16, first=16))
    nearest_earlier(stationary(gaussian(4000, 2)), permutation(4000), 10, settings)
    assert sum(asked) < 400
    asked.clear()
    nearest_earlier(stationary(gaussian(2000, 20)), permutation(2000), 10, settings)
    assert sum(asked) > 1500  # of twenty columns no box rules anything out


@pytest.mark.parametrize("n, size", [(1, 8), (7, 8), (8, 8), (9, 8), (1000, 16), (1024, 16)])
@pytest.mark.parametrize("d", [1, 3])
def test_leaves_hold_each_point_once_within_their_boxes(n: int, size: int, d: int) -> None:
    z = gaussian(n, d)
    leaves = leaves_of(z, size)
    assert leaves.count == -(-n // size)
    assert leaves.order.sort().values.tolist() == list(range(n))
    members = leaves.members(torch.arange(leaves.count))
    assert int((members >= 0).sum()) == n
    for leaf in range(leaves.count):
        own = z[members[leaf][members[leaf] >= 0]]
        assert torch.equal(own.amin(0), leaves.low[leaf])
        assert torch.equal(own.amax(0), leaves.high[leaf])
    between = gaps(leaves.low, leaves.high, leaves)
    for one in range(0, leaves.count, 3):
        for other in range(leaves.count):
            pairs = torch.cdist(z[members[one][members[one] >= 0]], z[members[other][members[other] >= 0]])
            assert float(between[one, other]) <= float(pairs.square().min()) + 1e-12


def test_leaves_are_compact() -> None:
    """In two columns a box is as wide as its share of the points says, within a factor of two, for all but a few."""
    z = torch.rand(4096, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    leaves = leaves_of(z, 16)
    assert float((leaves.high - leaves.low).amax(1).median()) < 2.0 * (16 / 4096) ** 0.5
