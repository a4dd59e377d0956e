"""K spread over ranks: each owns a block of rows, and one all-gather makes a product whole.

Every rank holds the points and the (n, r) vectors, all of them the same to the last bit; K alone, the n^2, is divided.
What follows from a product (the scalars of conjugate gradients, the decision to stop) is then computed by every rank
for itself and comes out the same everywhere, without a further message. That it does is not taken on trust: a checksum
of the right-hand sides travels with every product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from rtgp._kernels.form import Gradients, KernelForm
from rtgp.distributed import Group, checksum
from rtgp.errors import SettingError
from rtgp.operators._blocks import BlockOperator
from rtgp.operators._gpu import TritonOperator
from rtgp.operators._protocol import columns, tiles
from rtgp.operators._row_blocks import FusedRows, RowBlock, StoredRows, TiledRows

_ROWS: dict[str, type[RowBlock]] = {"dense": StoredRows, "tiled": TiledRows, "triton": FusedRows}


class ShardedOperator(BlockOperator):
    """K(X, X) spread over ranks, of which this one computes its own rows.

    Parameters
    ----------
    form : KernelForm
        The kernel and its points.
    tile : int
        Rows and columns of a tile.
    group : Group
        The ranks.
    local : {"dense", "tiled", "triton"}
        What each rank does with its rows.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import distributed, operators
    >>> form = operators.make(gpytorch.kernels.RBFKernel(), torch.zeros(4, 1)).form
    >>> K = operators.ShardedOperator(form, 512, distributed.Group.alone(), "dense")
    >>> K.matmul(torch.ones(4, 1))[0].item(), K.stored_bytes
    (4.0, 64)
    """

    def __init__(self, form: KernelForm, tile: int, group: Group, local: str) -> None:
        super().__init__(form, tile)
        if form.device.type != group.device.type and group.size > 1:
            raise SettingError(
                f"Expected the data on {group.device.type}, over which these processes exchange theirs. They are on "
                f"{form.device.type}: move model and data, or start the group by "
                f"rtgp.distributed.start(backend={'gloo' if form.device.type == 'cpu' else 'nccl'!r})."
            )
        self.group, self.local = group, local
        self.own = group.own(form.size)
        self._rows = _ROWS[local](self._unit, self.own, tile)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the part of K that this rank keeps in memory."""
        return self._rows.stored_bytes

    def _block(self, rows: slice, cols: slice) -> Tensor:
        return self._rows.block(rows, cols)

    def matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        return self._gathered(self._rows.matmul(v).mul_(self._scale), v)

    def wide_matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        return self._gathered(self._rows.wide_matmul(v).mul_(self._scale), v)

    def _gathered(self, own: Tensor, v: Tensor) -> Tensor:
        return self.group.gather_rows(own, self.form.size, checksum(v))

    def bilinears(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        if self.group.size == 1 and self.local == "triton":  # one rank has all rows, for which there is a fused kernel
            return TritonOperator(self.form, self.tile).bilinears(pairs)
        return super().bilinears(pairs)

    def _counted_tiles(self) -> Iterator[tuple[slice, slice, float]]:
        for rows in tiles(self.own, self.tile):
            for cols in tiles(slice(0, self.form.size), self.tile):
                yield rows, cols, 1.0

    def _summed(self, total: Tensor, gradients: Gradients) -> tuple[Tensor, Gradients]:
        """Value and gradients of all ranks' rows, in one all-reduce."""
        total, *gradients = self.group.sum_all([total, *gradients])
        return total, gradients

    def _row_tiles(self) -> list[slice]:
        return tiles(self.own, self.tile)

    def derivative_matmul(self, v: Tensor) -> Tensor:
        own = super().derivative_matmul(v)[:, self.own]  # (p, m, r)
        return self._gathered(own.movedim(0, 1), columns(v, self.form.size)).movedim(1, 0)
