"""K stored: the fastest operator wherever n^2 numbers fit in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp._kernels.form import KernelForm
from rtgp.operators._blocks import TILE, BlockOperator
from rtgp.operators._gpu.availability import usable
from rtgp.operators._product import stored_product, wide_product
from rtgp.operators._protocol import columns

_ALIGNED = 64


class DenseOperator(BlockOperator):
    """K(X, X), stored: the fastest operator wherever n^2 numbers fit in memory.

    Parameters
    ----------
    form : KernelForm
        The kernel and its points.
    tile : int
        Rows and columns that are computed at once.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> K = operators.make(gpytorch.kernels.RBFKernel(), torch.zeros(4, 1), operator="dense")
    >>> type(K).__name__, K.matmul(torch.ones(4, 1))[0].item()
    ('DenseOperator', 4.0)
    """

    def __init__(self, form: KernelForm, tile: int = TILE) -> None:
        super().__init__(form, tile)
        n = form.size
        # Rows begin at multiples of 256 bytes, which a card's wide loads need, and end in zeros.
        stride = -(-n // _ALIGNED) * _ALIGNED if form.device.type == "cuda" else n
        self._padded = torch.empty(n, stride, dtype=form.dtype, device=form.device)
        self._padded[:, n:] = 0.0
        self._matrix = self._padded[:, :n]
        self._store()
        self._fused = form.dtype == torch.float32 and usable(form.device)
        self._largest = float(self._unit.diagonal().max()) if self._fused else 1.0  # |K_ij| <= sqrt(K_ii K_jj)

    def _store(self) -> None:
        for rows, cols in self._upper_tiles():
            block = self._unit.block(rows, cols)
            self._matrix[rows, cols] = block
            if rows != cols:
                self._matrix[cols, rows] = block.T

    def renew(self, form: KernelForm, least_noise: Tensor | float = 0.0) -> bool:
        """Become the operator of another kernel in the same memory, on a CPU.

        There, new memory of that size costs as much as the entries, for the system hands it out page by page.

        Parameters
        ----------
        form : KernelForm
            Another kernel or other hyperparameters, on as many points.
        least_noise : Tensor or float
            The smallest variance of the noise, beside which entries may be negligible.

        Returns
        -------
        bool
            Whether it was done.
        """
        same = (form.size, form.dtype, form.device) == (self.form.size, self.dtype, self.device)
        if not same or form.device.type != "cpu":
            return False
        BlockOperator.__init__(self, form, self.tile)
        self._store()
        return True

    def _block(self, rows: slice, cols: slice) -> Tensor:
        return self._matrix[rows, cols]

    def wide_matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        return wide_product(self._matrix, v).mul_(self._scale)

    def matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        if self._fused:
            from rtgp.operators._gpu import stored

            return stored.stored_product(self._padded, v, self._largest).mul_(self._scale)
        return stored_product(self._matrix, v, symmetric=True).mul_(self._scale)
