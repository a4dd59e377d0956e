"""The nearest points by the leaves of k-d trees: queries of one leaf look into the leaves near to it, all at once.

Made for a card, where a tree that is walked point by point does not suit. Exact: what a leaf that was not looked into
could hold is known by its box. Names as in `neighbour_search`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp.operators._order import Leaves, gaps, leaves_of

Slow = Callable[[Tensor], Tensor]  # rows of the queries -> (rows, count) places, by all distances
Rank = Callable[[Tensor, Tensor, int], Tensor]  # (rows, their candidates, count) -> the nearest of these, exactly


@dataclass(frozen=True)
class LeafSettings:
    """How nearest neighbours are searched among leaves of points.

    Attributes
    ----------
    devices : tuple[str, ...]
        Kinds of device on which leaves are used.
    size : int
        Points of a leaf.
    first : int
        Leaves that a query looks into first. Queries whose neighbours may be elsewhere look into `more` times as many.
    more : int
        Growth of that number.
    share : float
        Share of all leaves beyond which all distances cost less.
    hopeless : float
        Part of the queries that the first look must serve. Where it does not, there are too many dimensions.
    least : int
        Places up to which all distances cost less.
    entries : int
        Size of a block of distances.
    """

    devices: tuple[str, ...] = ("cuda",)
    size: int = 64
    first: int = 16
    more: int = 4
    share: float = 0.25
    hopeless: float = 0.02
    least: int = 4096
    entries: int = 2**26


def by_leaves(
    z: Tensor,
    limits: Tensor,
    queries: Tensor,
    count: int,
    spare: int,
    settings: LeafSettings,
    slow: Slow,
    rank: Rank,
) -> Tensor:
    """(q, count) int64, as `nearest_by_distance`.

    `slow` serves queries that boxes do not help. `spare` is the number of candidates that are ranked exactly.
    """
    q, n = limits.shape[0], z.shape[0]
    result = torch.empty(q, count, dtype=torch.int64, device=z.device)
    start = int(torch.searchsorted(limits, settings.least))
    result[:start] = slow(torch.arange(start, device=z.device))
    while start < q:
        # All queries whose limit is within a factor of two: half of what is near, or more, is open to each.
        size = min(n, 2 * int(limits[start]))
        stop = q if size >= n else int(torch.searchsorted(limits, size, right=True))
        rows, leaves, width = torch.arange(start, stop, device=z.device), leaves_of(z[:size], settings.size), 0
        while len(rows):
            width = settings.first if width == 0 else settings.more * width
            if width > max(settings.share * leaves.count, settings.first):
                result[rows] = slow(rows)
                break
            found, sure = _looked(z, leaves, limits, queries, rows, width, count, spare, settings, rank)
            result[rows[sure]] = found[sure]
            if width == settings.first and float(sure.double().mean()) < settings.hopeless:
                result[start:] = slow(torch.arange(start, q, device=z.device))
                return result
            rows = rows[~sure]
        start = stop
    return result


def _looked(
    z: Tensor,
    leaves: Leaves,
    limits: Tensor,
    queries: Tensor,
    rows: Tensor,
    width: int,
    count: int,
    spare: int,
    settings: LeafSettings,
    rank: Rank,
) -> tuple[Tensor, Tensor]:
    """The nearest in `width` leaves each (rows, count), and whether no other leaf can hold a nearer one (rows,)."""
    width = min(width, leaves.count)
    groups = leaves_of(queries[rows], settings.size)
    places = torch.full((len(rows), spare), -1, dtype=torch.int64, device=z.device)
    bounds = torch.empty(len(rows), dtype=torch.float64, device=z.device)
    piece = max(1, settings.entries // (settings.size * max(width * settings.size, leaves.count)))
    for begin in range(0, groups.count, piece):
        which = torch.arange(begin, min(begin + piece, groups.count), device=z.device)
        low, high = groups.low[which], groups.high[which]
        distance, near = gaps(low, high, leaves).topk(min(width + 1, leaves.count), dim=1, largest=False)
        members = groups.members(which)  # (g, size), -1 where there are fewer
        asked = rows[members.clamp_min(0)]
        offered = leaves.members(near[:, :width]).flatten(1)  # (g, c)
        # By differences from the middle of the group: float32 then has all its digits for what is near.
        middle = (0.5 * (low + high))[:, None]
        own, others = ((t - middle).float() for t in (queries[asked], z[offered.clamp_min(0)]))
        squared = own.new_zeros(*own.shape[:2], others.shape[1])
        for a in range(own.shape[2]):
            difference = own[:, :, a, None] - others[:, None, :, a]
            squared.addcmul_(difference, difference)
        closed = (offered[:, None, :] >= limits[asked][:, :, None]) | (offered < 0)[:, None, :]
        value, column = squared.masked_fill_(closed, math.inf).topk(min(spare, squared.shape[2]), 2, largest=False)
        chosen = offered[:, None, :].expand_as(squared).gather(2, column).masked_fill_(torch.isinf(value), -1)
        present = members >= 0
        places[members[present], : chosen.shape[2]] = chosen[present]
        beyond = distance[:, width] if distance.shape[1] > width else torch.full_like(distance[:, 0], math.inf)
        bounds[members[present]] = beyond.double()[:, None].expand_as(members)[present]
    found = rank(rows, places, count)
    last = found[:, -1]
    furthest = (z[last.clamp_min(0)] - queries[rows]).double().square().sum(1)
    return found, torch.isinf(bounds) | ((last >= 0) & (furthest <= bounds))
