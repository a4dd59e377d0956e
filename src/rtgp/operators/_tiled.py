"""K recomputed tile by tile: O(n) memory, any kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.operators._blocks import BlockOperator
from rtgp.operators._protocol import columns


class TiledOperator(BlockOperator):
    """K(X, X), recomputed tile by tile: O(n) memory, any kernel.

    Each tile above the diagonal serves its mirror image too.

    Parameters
    ----------
    form : KernelForm
        The kernel and its points.
    tile : int
        Rows and columns of a tile.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> K = operators.make(gpytorch.kernels.RBFKernel(), torch.zeros(4, 1), operator="tiled")
    >>> type(K).__name__, K.matmul(torch.ones(4, 1))[0].item()
    ('TiledOperator', 4.0)
    """

    def _block(self, rows: slice, cols: slice) -> Tensor:
        return self._unit.block(rows, cols)

    def matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        result = torch.zeros_like(v)
        for rows, cols in self._upper_tiles():
            block = self._block(rows, cols)
            result[rows] += block @ v[cols]
            if rows != cols:
                result[cols] += block.T @ v[rows]
        return result.mul_(self._scale)
