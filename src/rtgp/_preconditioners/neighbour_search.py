"""The nearest points by Euclidean distance among those that come first in an order: exact, by trees, leaves or blocks.

Here points are numbered by their place in the order. Query i may choose among places 0 ... limits_i - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtgp._preconditioners.leaf_search import LeafSettings, by_leaves

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Score = Callable[[slice, int], Tensor]  # (queries, stop) -> (q, stop): the smaller, the nearer


@dataclass(frozen=True)
class SearchSettings:
    """Costs are seconds on one core, measured on Gaussian points (n = 1e4 and 1e5, d = 1 to 26, 40 neighbours)."""

    tree_cost: float = 8e-8  # of a tree's query, for each neighbour, times
    tree_growth: float = 1.65  # to the power of the effective dimension
    entry_cost: float = 12.5e-9  # of an entry of a block of distances: the product, and its part in the selection
    first: int = 512  # places that blocks serve: too few for a tree
    prefix_growth: float = 1.2  # from one tree to the next
    entries: int = 2**22  # of a block, on a CPU
    entries_on_card: int = 2**26
    expanded_dimensions: int = 5  # from here on distances come from a product, and are then ranked exactly
    cancelled: float = 1e-9  # part of the squares below which their difference is taken from the points
    spare: float = 1.25  # candidates for each neighbour where distances are rounded,
    more_spare: int = 8  # and so many more
    candidates: int = 4  # for each neighbour, by coordinates, where the correlation decides
    few_points: int = 4096  # up to which the correlation of all pairs decides instead
    leaves: LeafSettings = field(default_factory=LeafSettings)

    def prefers_tree(self, z: Tensor, count: int) -> bool:
        """Whether trees are the cheaper for the points z (n, d), by their effective dimension."""
        if z.device.type != "cpu" or z.shape[0] <= self.first:
            return False
        spread = z.double().var(0, correction=0)
        total = float(spread.sum())
        # Columns that hardly vary do not count: (sum v)^2 / sum v^2.
        dimension = total**2 / float(spread.square().sum()) if total > 0.0 else 1.0
        by_tree = self.tree_cost * (count + 1) * self.tree_growth**dimension
        return bool(by_tree < 0.5 * self.entry_cost * z.shape[0])

    def candidates_where_rounded(self, count: int) -> int:
        return math.ceil(self.spare * count) + self.more_spare

    def block_rows(self, columns: int, device: torch.device) -> int:
        entries = self.entries if device.type == "cpu" else self.entries_on_card
        return max(1, entries // max(1, columns))


def nearest_by_distance(z: Tensor, limits: Tensor, queries: Tensor, count: int, settings: SearchSettings) -> Tensor:
    """(q, count) int64, nearest first, -1 where there are fewer; z (n, d), queries (q, d), limits (q,) ascending.

    With queries = z and limits = 0 ... n - 1: the nearest earlier points.
    """
    if z.device.type in settings.leaves.devices:
        return _by_leaves(z, limits, queries, count, settings)
    if settings.prefers_tree(z, count):
        return _by_trees(z, limits, queries, count, settings)
    return _by_blocks(z, limits, queries, count, settings)


def smallest(score: Score, limits: Tensor, count: int, settings: SearchSettings) -> tuple[Tensor, Tensor]:
    """(q, count) int64: the places with the smallest scores, smallest first, -1 where there are fewer; and those."""
    q, device = limits.shape[0], limits.device
    places = torch.full((q, count), -1, dtype=torch.int64, device=device)
    scores = torch.full((q, count), math.inf, dtype=torch.float64, device=device)
    start = 0
    while start < q:
        # Early queries have few columns: as many rows as the last of them allows.
        rows = settings.block_rows(int(limits[start]), device)
        rows = min(rows, settings.block_rows(int(limits[min(q, start + rows) - 1]), device))
        stop = min(q, start + rows)
        columns = int(limits[stop - 1])
        if columns > 0:
            found = score(slice(start, stop), columns)
            first = int(limits[start])  # the columns before are open to all rows
            later = torch.arange(first, columns, device=device)
            found[:, first:].masked_fill_(later >= limits[start:stop, None], math.inf)
            value, place = torch.topk(found, min(count, columns), dim=1, largest=False)
            places[start:stop, : place.shape[1]] = place.masked_fill_(torch.isinf(value), -1)
            scores[start:stop, : place.shape[1]] = value
        start = stop
    return places, scores


def _by_leaves(z: Tensor, limits: Tensor, queries: Tensor, count: int, settings: SearchSettings) -> Tensor:
    return by_leaves(
        z,
        limits,
        queries,
        count,
        settings.candidates_where_rounded(count),
        settings.leaves,
        lambda rows: _by_blocks(z, limits[rows], queries[rows], count, settings),
        lambda rows, candidates, wanted: _ranked(z, queries[rows], candidates, wanted, settings),
    )


def _by_blocks(z: Tensor, limits: Tensor, queries: Tensor, count: int, settings: SearchSettings) -> Tensor:
    on_cpu = z.device.type == "cpu"
    # Selection is what costs on a card; the candidates are then ranked exactly.
    narrow, narrow_queries = (z, queries) if on_cpu else (z.float(), queries.float())
    spare = count + settings.more_spare if on_cpu else settings.candidates_where_rounded(count)
    if z.shape[1] < settings.expanded_dimensions:

        def differences(rows: slice, stop: int) -> Tensor:
            found = narrow.new_zeros(rows.stop - rows.start, stop)
            for k in range(narrow.shape[1]):
                difference = narrow_queries[rows, k, None] - narrow[None, :stop, k]
                found.addcmul_(difference, difference)
            return found

        found, _ = smallest(differences, limits, count if on_cpu else spare, settings)
        return found if on_cpu else _ranked(z, queries, found, count, settings)
    squares = narrow.square().sum(1)

    def expanded(rows: slice, stop: int) -> Tensor:  # less |query|^2, which ranks nothing
        return torch.addmm(squares[None, :stop], narrow_queries[rows], narrow[:stop].T, alpha=-2.0)

    found, scores = smallest(expanded, limits, spare, settings)
    if not on_cpu:
        return _ranked(z, queries, found, count, settings)
    # Where the nearest is so near that an expanded square has lost its digits, differences decide.
    size = queries.square().sum(1)
    rounded = torch.nonzero(scores[:, 0] + size < settings.cancelled * (size + squares.max())).reshape(-1)
    result = found[:, :count].clone()
    result[rounded] = _ranked(z, queries[rounded], found[rounded], count, settings)
    return result


def _ranked(z: Tensor, queries: Tensor, candidates: Tensor, count: int, settings: SearchSettings) -> Tensor:
    """The nearest `count` of the candidates (q, c), by exact differences."""
    q, c = candidates.shape
    rows = settings.block_rows(c * z.shape[1], z.device)
    pieces = []
    for start in range(0, q, rows):
        # By place first: among points that are equally far the order is then always the same.
        places = candidates[start : start + rows].sort(1).values
        distance = (z[places.clamp_min(0)] - queries[start : start + rows, None]).square_().sum(-1)
        distance.masked_fill_(places < 0, math.inf)
        best = distance.sort(dim=1, stable=True).indices[:, :count]
        pieces.append(places.gather(1, best))
    return torch.cat(pieces) if pieces else candidates[:, :count]


def _by_trees(z: Tensor, limits: Tensor, queries: Tensor, count: int, settings: SearchSettings) -> Tensor:
    """Trees of growing prefixes: most of what is near a query in the next larger prefix is open to it."""
    from scipy.spatial import cKDTree  # slow to load

    points, asked, limit = z.numpy(), queries.numpy(), limits.numpy()
    n, q = len(points), len(asked)
    if _has_many_equal(points, count):
        # Equal points make a tree one long list. A column far below rounding in the others tells them apart.
        tiny = 1e-9 * (float(np.abs(points).max()) or 1.0) / n
        places = tiny * np.arange(n, dtype=np.float64)[:, None]
        own = tiny * np.minimum(limit, n - 1).astype(np.float64)[:, None]
        points, asked = np.hstack([points, places]), np.hstack([asked, own])
    result = np.full((q, count), -1, dtype=np.int64)
    head = int(np.searchsorted(limit, settings.first))
    result[:head] = _by_blocks(z, limits[:head], queries[:head], count, settings).numpy()
    start = head
    while start < q:
        # All queries whose limit is within a factor of each other, and the tree of the largest.
        size = min(n, int(settings.prefix_growth * max(int(limit[start]), settings.first)) + 1)
        stop = q if size >= n else int(np.searchsorted(limit, size, side="right"))
        tree = cKDTree(points[:size], compact_nodes=False, balanced_tree=False)
        closed = size - int(limit[start])  # places of the tree that the first of them may not choose
        expected = count * size / (size - closed)
        width = min(size, math.ceil(expected + 3.0 * math.sqrt(expected * closed / size)) + (closed > 0))
        _query(tree, asked[start:stop], limit[start:stop], width, result[start:stop])
        start = stop
    return torch.from_numpy(result)


def _query(tree: Any, asked: Floats, limit: Places, width: int, into: Places) -> None:
    """Asks for more until every query has as many as it may have."""
    count, size = into.shape[1], tree.n
    rows = np.lexsort(asked.T[:1])  # neighbours in space one after another: their part of the tree stays in the cache
    while len(rows):
        _, found = tree.query(asked[rows], k=np.arange(1, width + 1), workers=torch.get_num_threads())
        open_ = found < limit[rows, None]
        enough = open_.sum(1) >= np.minimum(count, limit[rows])
        order = np.argsort(~open_[enough], axis=1, kind="stable")[:, :count]
        chosen = np.take_along_axis(np.where(open_[enough], found[enough], -1), order, axis=1)
        into[rows[enough], : chosen.shape[1]] = chosen
        rows, width = rows[~enough], min(size, 2 * width)


def _has_many_equal(points: Floats, count: int) -> bool:
    """Whether one point is there many times, judged by one random projection."""
    direction = np.random.default_rng(0).standard_normal(points.shape[1])
    _, times = np.unique(points @ direction, return_counts=True)
    return bool(times.max() > 4 * (count + 1))
