"""K stored: the fastest operator wherever n^2 numbers fit in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.kernels.forms import KernelForm
from rtgp.operators.blocks import BlockOperator
from rtgp.operators.product import stored_product
from rtgp.operators.protocol import columns


class DenseOperator(BlockOperator):
    """K(X, X), stored."""

    def __init__(self, form: KernelForm, tile: int = 1024) -> None:
        super().__init__(form, tile)
        n = form.size
        self._matrix = torch.empty(n, n, dtype=form.dtype, device=form.device)
        for rows, cols in self._upper_tiles():
            block = self._unit.block(rows, cols)
            self._matrix[rows, cols] = block
            if rows != cols:
                self._matrix[cols, rows] = block.T

    def _block(self, rows: slice, cols: slice) -> Tensor:
        return self._matrix[rows, cols]

    def matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        return stored_product(self._matrix, v).mul_(self._scale)
