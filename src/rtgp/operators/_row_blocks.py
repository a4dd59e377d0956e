"""Some rows of K against all columns: what a rank multiplies by itself. Stored, recomputed in tiles, or fused."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rtgp._kernels.form import KernelForm
from rtgp.errors import SettingError
from rtgp.operators._gpu.availability import SUPPORTED, stationary, supported
from rtgp.operators._gpu.points import prepare
from rtgp.operators._gpu.settings import Tuning
from rtgp.operators._product import stored_product, wide_product
from rtgp.operators._protocol import tiles

_WIDE_TILE = 1024  # columns whose products are summed in the working precision


class RowBlock(ABC):
    """K_unit[rows, :], (m, n)."""

    def __init__(self, form: KernelForm, rows: slice, tile: int) -> None:
        self.form, self.rows, self.tile = form, rows, tile

    @property
    def stored_bytes(self) -> int:
        """Of the part of K that is kept in memory."""
        return 0

    def block(self, rows: slice, cols: slice) -> Tensor:
        """K_unit[rows, cols] for rows among those of this block; the caller does not write to it."""
        return self.form.block(rows, cols)

    @abstractmethod
    def matmul(self, v: Tensor) -> Tensor:
        """(n, r) -> (m, r)."""

    @abstractmethod
    def wide_matmul(self, v: Tensor) -> Tensor:
        """The same with sums in float64, as float64."""


class StoredRows(RowBlock):
    """K_unit[rows, :] kept in memory."""

    def __init__(self, form: KernelForm, rows: slice, tile: int) -> None:
        super().__init__(form, rows, tile)
        self._matrix = torch.empty(rows.stop - rows.start, form.size, dtype=form.dtype, device=form.device)
        for part in tiles(rows, tile):
            self._matrix[self._within(part)] = form.block(part, slice(0, form.size))

    def _within(self, rows: slice) -> slice:
        return slice(rows.start - self.rows.start, rows.stop - self.rows.start)

    @property
    def stored_bytes(self) -> int:
        return self._matrix.numel() * self._matrix.element_size()

    def block(self, rows: slice, cols: slice) -> Tensor:
        return self._matrix[self._within(rows), cols]

    def matmul(self, v: Tensor) -> Tensor:
        if v.device.type == "cuda" and v.dtype == torch.float32:
            # A card's library adds up all n terms one after the other, which loses too much where they cancel.
            result = torch.zeros(self._matrix.shape[0], v.shape[1], dtype=torch.float64, device=v.device)
            for cols in tiles(slice(0, self.form.size), _WIDE_TILE):
                result += self._matrix[:, cols] @ v[cols]
            return result.to(v.dtype)
        return stored_product(self._matrix, v)

    def wide_matmul(self, v: Tensor) -> Tensor:
        return wide_product(self._matrix, v)


class TiledRows(RowBlock):
    """K_unit[rows, :] recomputed tile by tile."""

    def matmul(self, v: Tensor) -> Tensor:
        return self._summed(v, v.dtype)

    def wide_matmul(self, v: Tensor) -> Tensor:
        return self._summed(v, torch.float64)

    def _summed(self, v: Tensor, dtype: torch.dtype) -> Tensor:
        result = torch.zeros(self.rows.stop - self.rows.start, v.shape[1], dtype=dtype, device=v.device)
        for rows in tiles(self.rows, self.tile):
            target = result[rows.start - self.rows.start : rows.stop - self.rows.start]
            for cols in tiles(slice(0, self.form.size), self.tile):
                block, part = self.block(rows, cols), v[cols]
                target += wide_product(block, part) if dtype == torch.float64 else block @ part
        return result


class FusedRows(RowBlock):
    """K_unit[rows, :] within one Triton kernel."""

    def __init__(self, form: KernelForm, rows: slice, tile: int) -> None:
        super().__init__(form, rows, tile)
        leaf, reason = stationary(form), supported(form)
        if reason is not None or leaf is None:
            raise SettingError(f"{SUPPORTED}. Here {reason}. Use operator='sharded' or 'sharded:tiled' instead.")
        z = leaf.z.detach()
        self._pair = prepare(leaf.formula.name, z[rows], z, Tuning().direct)

    def matmul(self, v: Tensor) -> Tensor:
        return self._product(v, wide=False)

    def wide_matmul(self, v: Tensor) -> Tensor:
        return self._product(v, wide=True)

    def _product(self, v: Tensor, wide: bool) -> Tensor:
        from rtgp.operators._gpu.product import product

        return product(self._pair, v, wide=wide)
