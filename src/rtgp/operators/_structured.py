"""K by the products of its own structure: a grid, a low rank, or whatever `LinearOperator` the model has made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rtgp._kernels.structured import product, product_pullback
from rtgp.operators._blocks import BlockOperator
from rtgp.operators._protocol import attach_gradients, columns


class StructuredOperator(BlockOperator):
    """K(X, X) of a structured form, never stored. Blocks, where they are asked for, cost a product."""

    def _block(self, rows: slice, cols: slice) -> Tensor:
        return self._unit.block(rows, cols)

    def matmul(self, v: Tensor) -> Tensor:
        return product(self._unit, columns(v, self.form.size)).to(v.dtype).mul_(self._scale)

    def wide_matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size).double()
        return product(self._unit, v, torch.float64).mul_(self._scale)

    def bilinears(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        found = []
        for u, v in pairs:
            u, v = columns(u, self.form.size), columns(v, self.form.size)
            gradients = self.form.zero_gradients()
            total = (u * self.matmul(v)).sum(dtype=torch.float64)
            product_pullback(self.form, u, v, gradients)
            found.append(attach_gradients(total, self.form.tensors, gradients))
        return found
