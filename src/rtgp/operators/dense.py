"""K stored: the fastest operator wherever n^2 numbers fit in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.kernels.forms import KernelForm
from rtgp.operators.blocks import BlockOperator
from rtgp.operators.product import stored_product, wide_product
from rtgp.operators.protocol import columns
from rtgp.operators.triton.availability import usable

_ALIGNED = 64


class DenseOperator(BlockOperator):
    """K(X, X), stored."""

    def __init__(self, form: KernelForm, tile: int = 1024) -> None:
        super().__init__(form, tile)
        n = form.size
        # Rows begin at multiples of 256 bytes, which a card's wide loads need, and end in zeros.
        stride = -(-n // _ALIGNED) * _ALIGNED if form.device.type == "cuda" else n
        self._padded = torch.empty(n, stride, dtype=form.dtype, device=form.device)
        self._padded[:, n:] = 0.0
        self._matrix = self._padded[:, :n]
        for rows, cols in self._upper_tiles():
            block = self._unit.block(rows, cols)
            self._matrix[rows, cols] = block
            if rows != cols:
                self._matrix[cols, rows] = block.T
        self._fused = form.dtype == torch.float32 and usable(form.device)
        self._largest = float(self._unit.diagonal().max()) if self._fused else 1.0  # |K_ij| <= sqrt(K_ii K_jj)

    def _block(self, rows: slice, cols: slice) -> Tensor:
        return self._matrix[rows, cols]

    def wide_matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        return wide_product(self._matrix, v).mul_(self._scale)

    def matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        if self._fused:
            from rtgp.operators.triton import stored

            return stored.stored_product(self._padded, v, self._largest).mul_(self._scale)
        return stored_product(self._matrix, v, symmetric=True).mul_(self._scale)
