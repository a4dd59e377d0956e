"""The tiles of a plan in pieces of work: blocks of one row of tiles, and the rows that a thread takes together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from rtgp._threads import PARTS
from rtgp.operators._near_plan import NearPlan

ENTRIES = 2**16  # of K, computed at once by one thread: a few arrays of them stay in its cache


@dataclass(frozen=True, eq=False)
class Block:
    """Some tiles of one row of tiles.

    leaves: of the columns. own: 1 where the first of them is the row's own, on the diagonal, otherwise 0. place,
    row_place: of the leaves among those that its part touches.
    """

    row: int
    leaves: Tensor
    own: int
    place: Tensor
    row_place: int
    size: int  # points of a leaf

    @property
    def rows(self) -> slice:
        return slice(self.row * self.size, (self.row + 1) * self.size)

    def columns(self) -> Tensor:
        """The points of the columns in the plan's order."""
        within = torch.arange(self.size, device=self.leaves.device)
        return (self.leaves[:, None] * self.size + within).view(-1)


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of tiles that one thread takes together. touched: the leaves that they add to, sorted."""

    touched: Tensor
    blocks: tuple[Block, ...]


def parts(plan: NearPlan) -> tuple[Part, ...]:
    """Of about as many tiles each; the same ones on any number of threads."""
    device, size = plan.begins.device, plan.leaves.size
    tiles = plan.begins + torch.arange(len(plan.begins), device=device)
    even = torch.linspace(0.0, float(tiles[-1]), PARTS + 1, dtype=torch.float64, device=device)
    edges = [*torch.searchsorted(tiles.double(), even[:-1]).tolist(), plan.leaves.count]
    begins, each, found = plan.begins.tolist(), max(1, ENTRIES // size**2), []
    for start, stop in pairwise(edges):
        own = torch.arange(start, stop, device=device)
        touched = torch.unique(torch.cat([plan.columns[begins[start] : begins[stop]], own]))
        row_places = torch.searchsorted(touched, own).tolist()
        blocks = []
        for row, row_place in zip(range(start, stop), row_places, strict=True):
            # The tile on the diagonal comes first.
            leaves = torch.cat([own[row - start, None], plan.columns[begins[row] : begins[row + 1]]])
            place = torch.searchsorted(touched, leaves)
            pieces = zip(torch.split(leaves, each), torch.split(place, each), strict=True)
            blocks += [
                Block(row, piece, int(number == 0), where, row_place, size)
                for number, (piece, where) in enumerate(pieces)
            ]
        if blocks:
            found.append(Part(touched, tuple(blocks)))
    return tuple(found)
