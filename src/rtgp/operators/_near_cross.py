"""K(x_new, X) by the tiles that count."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rtgp._kernels.form import KernelForm
from rtgp.operators._near_blocks import ENTRIES
from rtgp.operators._near_plan import NearPlan, cross_list
from rtgp.operators._order import Leaves, TileSettings
from rtgp.operators._protocol import CrossOperator, columns


class NearCross(CrossOperator):
    """K(x_new, X) by the tiles that count."""

    def __init__(
        self, form: KernelForm, rows: slice, cols: slice, tile: int, plan: NearPlan, settings: TileSettings
    ) -> None:
        super().__init__(form, rows, cols, tile)
        self._plan = plan
        self._leaves, self._near = cross_list(plan, form, settings)

    def matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.shape[1])
        result = v.new_zeros(self.shape[0], v.shape[1])
        for ours, theirs, k in self._pieces():
            result[ours] += k @ v[theirs]
        return result

    def transposed_matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.shape[0])
        result = v.new_zeros(self.shape[1], v.shape[1])
        for ours, theirs, k in self._pieces():
            result[theirs] += k.T @ v[ours]
        return result

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(some of the new points, points that are near, their block of K)."""
        each = max(1, ENTRIES // self._leaves.size**2)
        for row, near in enumerate(self._near):
            ours = _points(self._leaves, torch.tensor([row], device=self.device))
            for piece in torch.split(near, each):
                if len(piece):
                    theirs = _points(self._plan.leaves, piece)
                    yield ours, theirs, self._form.block(ours + self._rows.start, theirs)


def _points(leaves: Leaves, which: Tensor) -> Tensor:
    found = leaves.members(which).view(-1)
    return found[found >= 0]
