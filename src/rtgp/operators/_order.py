"""Points sorted by the leaves of a balanced k-d tree, with a box around each leaf: what is near stands together.

Then most tiles of a kernel matrix with short lengthscales hold nothing that counts, and their boxes tell which do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Leaves:
    """Points in groups that lie close together.

    Attributes
    ----------
    order : Tensor
        The points, leaf after leaf. Each leaf has `size` of them, the last one what is left.
    """

    order: Tensor  # (n,) int64
    size: int
    low: Tensor  # (leaves, d): the corners of the boxes
    high: Tensor

    @property
    def count(self) -> int:
        return self.low.shape[0]

    def members(self, which: Tensor) -> Tensor:
        """(..., size) int64: the points of some leaves (...), -1 where there are fewer."""
        places = which[..., None] * self.size + torch.arange(self.size, device=which.device)
        found = self.order[places.clamp_max(len(self.order) - 1)]
        return torch.where(places < len(self.order), found, -1)


def leaves_of(z: Tensor, size: int) -> Leaves:
    """Of the points z (n, d): each node is halved at the median of its widest coordinate."""
    n, d = z.shape
    levels = max(0, math.ceil(math.log2(max(1, n) / size)))
    # The missing points of a full tree are infinitely far away, and end up behind all others.
    full = torch.nn.functional.pad(z, (0, 0, 0, size * 2**levels - n), value=math.inf)
    order = torch.arange(len(full), device=z.device)
    for level in range(levels):
        nodes = full[order].reshape(2**level, -1, d)
        low, high = _corners(nodes)
        widest = (high - low).argmax(1)  # of an empty node: whichever
        along = nodes.gather(2, widest[:, None, None].expand(-1, nodes.shape[1], 1))[:, :, 0]
        order = order.reshape(2**level, -1).gather(1, along.argsort(dim=1, stable=True)).reshape(-1)
    return boxed(z, order[:n], size)


def boxed(z: Tensor, order: Tensor, size: int) -> Leaves:
    """Leaves of points z (n, d) in an order that is known: `z` may have moved a little since."""
    short = -len(order) % size
    sorted_z = torch.nn.functional.pad(z[order], (0, 0, 0, short), value=math.inf)
    return Leaves(order, size, *_corners(sorted_z.reshape(-1, size, z.shape[1])))


def gaps(low: Tensor, high: Tensor, others: Leaves) -> Tensor:
    """(boxes, leaves): squared distances between boxes (boxes, d) and leaves, 0 where they overlap."""
    total = low.new_zeros(low.shape[0], others.count)
    for a in range(low.shape[1]):
        apart = torch.maximum(low[:, a, None] - others.high[:, a], others.low[:, a] - high[:, a, None])
        total.addcmul_(apart.clamp_min_(0.0), apart)
    return total


def _corners(nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Of each node (nodes, points, d), missing points left out."""
    return nodes.amin(1), nodes.masked_fill(nodes == math.inf, -math.inf).amax(1)


@dataclass(frozen=True)
class TileSettings:
    """How points are ordered, and which tiles of K are left out.

    Attributes
    ----------
    bound : float
        Bound of what may be left out of a row of K, in units of the smallest noise. A = S K S + I then stays positive
        definite, and the objective moves by about this much per point at most.
    share : float
        Share of tiles above which a list of tiles does not pay.
    unread : float
        Share of tiles up to which computing them in every product is faster than reading a stored half of K.
    entries : int
        Size of a block of distances between boxes.
    stored : float
        Share of tiles up to which a CPU stores those that count in place of all of K, where all of K fits.
    leaf : int
        Points of a tile on a CPU.
    least : int
        Points below which a CPU makes no list: all of K is cheap there.
    grid : float
        Ratio of a grid on which lengthscales and the bound are rounded. A list is made for the next larger lengthscale
        on it. So it stays the same until they leave their cell, and depends on nothing earlier.
    sample : int
        Points, and rows of tiles, from which the share is predicted.
    distances : int
        Steps into which distances are divided, to see where the bound is reached.
    """

    bound: float = 1e-4
    share: float = 0.5
    unread: float = 0.3
    entries: int = 2**24
    stored: float = 0.3
    leaf: int = 64
    least: int = 4096
    grid: float = 1.1
    sample: int = 512
    distances: int = 96


DEFAULT = TileSettings()


def negligible_entry(size: int, scale: float, least_noise: float, settings: TileSettings = DEFAULT) -> float:
    """Of a kernel of unit scale: entries up to here may be left out of all rows of `size` columns. 0: none."""
    entry = settings.bound * least_noise / (abs(scale) * size) if scale else 0.0
    return entry if 0.0 < entry < math.inf else 0.0


@dataclass(frozen=True)
class TileList:
    """Pairs of tiles of a matrix, row after row of tiles.

    Attributes
    ----------
    begins : Tensor
        (rows of tiles + 1,) int32: where each row begins in `columns`.
    columns : Tensor
        (pairs,) int32: the columns of tiles.
    turn : Tensor
        (rows of tiles,) int32: the rows, longest first.
    share : float
        The part of all pairs of tiles that they are.
    """

    begins: Tensor
    columns: Tensor
    turn: Tensor
    share: float


def near_share(rows: Leaves, columns: Leaves, limit: float, settings: TileSettings = DEFAULT) -> float:
    """Of all pairs of leaves, that come within the squared distance `limit`."""
    near = rows.low.new_zeros((), dtype=torch.int64)
    for begin in range(0, rows.count, piece := max(1, settings.entries // columns.count)):
        near += (gaps(rows.low[begin : begin + piece], rows.high[begin : begin + piece], columns) <= limit).sum()
    return int(near) / (rows.count * columns.count)


def tile_list(
    rows: Leaves, columns: Leaves, limit: float, height: int = 1, width: int = 1, settings: TileSettings = DEFAULT
) -> TileList:
    """Tiles of `height` leaves of the rows by `width` leaves of the columns, those whose boxes come within the squared
    distance `limit`."""
    wide, counts, found = -(-columns.count // width), [], []
    piece = height * max(1, settings.entries // (height * columns.count))
    for begin in range(0, rows.count, piece):
        near = gaps(rows.low[begin : begin + piece], rows.high[begin : begin + piece], columns) <= limit
        short = -near.shape[0] % height
        near = torch.nn.functional.pad(near, (0, wide * width - near.shape[1], 0, short))
        near = near.view(-1, height, wide, width).any(3).any(1)
        counts.append(near.sum(1))
        found.append(near.nonzero()[:, 1].int())
    count = torch.cat(counts)
    begins = torch.nn.functional.pad(count.cumsum(0), (1, 0)).int()
    pairs = torch.cat(found)
    turn = count.argsort(descending=True, stable=True).int()
    return TileList(begins, pairs, turn, len(pairs) / (len(count) * wide))
