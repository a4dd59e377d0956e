"""K stored: the fastest operator wherever n^2 numbers fit in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.kernels.forms import KernelForm
from rtgp.operators.blocks import BlockOperator
from rtgp.operators.protocol import columns

# Matrix libraries are slow on products with an odd, small number of columns: on a CPU, 11 columns cost twice as much
# as 16 (benchmarks/results/stored_product.csv). Zero columns are cheaper than that.
_COLUMNS = 16
_ROW_BLOCK = 1200


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
        if v.device.type != "cpu":
            return (self._matrix @ v).mul_(self._scale)
        return stored_product(self._matrix, v).mul_(self._scale)


def stored_product(matrix: Tensor, v: Tensor) -> Tensor:
    """matrix @ v on a CPU, for few columns."""
    r = v.shape[1]
    if r == 1 or r >= 4 * _COLUMNS:
        return matrix @ v
    if r <= _COLUMNS // 2:
        return matrix @ v.T.contiguous().T  # columns contiguous: twice as fast as rows here
    padded = -(-r // _COLUMNS) * _COLUMNS
    if padded != r:
        v = torch.nn.functional.pad(v, (0, padded - r))
    result = torch.empty_like(v)
    for start in range(0, matrix.shape[0], _ROW_BLOCK):
        stop = start + _ROW_BLOCK
        torch.mm(matrix[start:stop], v, out=result[start:stop])
    return result[:, :r]
