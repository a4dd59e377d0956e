"""What the dense and the tiled operator share: everything but the product itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rtgp._kernels.composites import Scaled
from rtgp._kernels.form import Gradients, KernelForm, unique
from rtgp.operators._product import wide_product
from rtgp.operators._protocol import CrossOperator, attach_gradients, columns, tiles

# Rows and columns of a tile, by kind of device. A CPU keeps a few tiles of float64 in its cache.
TILE_SIZES = {"cpu": 512, "cuda": 4096}
TILE = 1024  # of any other kind, and where nobody has chosen
Weight = Callable[[slice, slice], Tensor]  # a symmetric matrix by its blocks


class BlockOperator(ABC):
    """K = scale * K_unit, evaluated in square tiles.

    The scale is kept apart from K_unit, whose entries then use the whole of a float32 however large outputscale / noise
    becomes.
    """

    def __init__(self, form: KernelForm, tile: int) -> None:
        self.form, self.tile = form, tile
        self._unit = form.form if isinstance(form, Scaled) else form
        self._scale = float(form.scale.detach()) if isinstance(form, Scaled) else 1.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.form.size, self.form.size

    @property
    def dtype(self) -> torch.dtype:
        return self.form.dtype

    @property
    def device(self) -> torch.device:
        return self.form.device

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        return self.form.hyperparameters

    def renew(self, form: KernelForm, least_noise: Tensor | float = 0.0) -> bool:
        return False

    @abstractmethod
    def matmul(self, v: Tensor) -> Tensor:
        """K v, without autograd history.

        Parameters
        ----------
        v : Tensor
            Right-hand sides, (n, r).

        Returns
        -------
        Tensor
            The product, (n, r).
        """

    def scaled_matmul(self, v: Tensor, s: Tensor) -> Tensor:
        return self.matmul(v * s[:, None]).mul_(s[:, None]).add_(v)

    def wide_matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        result = torch.zeros(v.shape, dtype=torch.float64, device=v.device)
        for rows, cols in self._upper_tiles():
            block = self._block(rows, cols)
            result[rows] += wide_product(block, v[cols])
            if rows != cols:
                result[cols] += wide_product(block.T, v[rows])
        return result.mul_(self._scale)

    @abstractmethod
    def _block(self, rows: slice, cols: slice) -> Tensor:
        """K_unit[rows, cols]; the caller does not write to it."""

    def _upper_tiles(self) -> Iterator[tuple[slice, slice]]:
        """Every pair of tiles on or above the diagonal: K is symmetric."""
        pieces = tiles(slice(0, self.form.size), self.tile)
        for i, rows in enumerate(pieces):
            for cols in pieces[i:]:
                yield rows, cols

    def _counted_tiles(self) -> Iterator[tuple[slice, slice, float]]:
        """Tiles with a factor each; the sum over them, times the factors, is that over all of K."""
        for rows, cols in self._upper_tiles():
            yield rows, cols, 1.0 if rows == cols else 2.0  # the mirror image below the diagonal

    def _summed(self, total: Tensor, gradients: Gradients) -> tuple[Tensor, Gradients]:
        """The sum over the tiles seen here and those seen on other ranks, where there are some."""
        return total, gradients

    def _row_tiles(self) -> list[slice]:
        """The rows that `derivative_matmul` computes."""
        return tiles(slice(0, self.form.size), self.tile)

    def contract(self, weight: Weight) -> Tensor:
        return self._contracted([weight])[0]

    def _contracted(self, weights: Sequence[Weight]) -> list[Tensor]:
        """`contract` of every weight, in one pass over the tiles."""
        totals = [torch.zeros((), dtype=torch.float64, device=self.device) for _ in weights]
        gradients = [self._unit.zero_gradients() for _ in weights]
        differentiable = any(t.requires_grad for t in self._unit.tensors)
        for rows, cols, times in self._counted_tiles():
            block, parts = self._block(rows, cols), [weight(rows, cols) for weight in weights]
            for total, part in zip(totals, parts, strict=True):
                total += torch.sum(part * block, dtype=torch.float64) * times
            if differentiable:
                scaled = [part * (times * self._scale) for part in parts]
                self._unit.pullbacks(rows, cols, scaled, gradients, block)
        found = []
        for total, own in zip(totals, gradients, strict=True):
            whole, summed = self._summed(total, own)
            if isinstance(self.form, Scaled):
                found.append(attach_gradients(whole * self._scale, self.form.tensors, [whole, *summed]))
            else:
                found.append(attach_gradients(whole, self.form.tensors, summed))
        return found

    def bilinear(self, u: Tensor, v: Tensor) -> Tensor:
        return self.bilinears([(u, v)])[0]

    def bilinears(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return self._contracted([self._outer(u, v) for u, v in pairs])

    def _outer(self, u: Tensor, v: Tensor) -> Weight:
        """The symmetric part of sum_r u_r v_r^T, block by block."""
        u, v = (columns(w, self.form.size) for w in (u, v))
        left = torch.cat([u, v], dim=1) * 0.5  # (n, 2r)
        right = torch.cat([v, u], dim=1).T.contiguous()
        return lambda rows, cols: left[rows] @ right[:, cols]

    def diagonal(self) -> Tensor:
        return self.form.diagonal()

    def rows(self, index: Tensor, columns: slice | Tensor | None = None) -> Tensor:
        return self.form.block(index, slice(0, self.form.size) if columns is None else columns)

    def derivative_matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        parameters = unique(self.form.hyperparameters)
        results = {id(p): v.new_zeros(p.numel(), *v.shape) for p in parameters}
        for rows in self._row_tiles():
            for cols in tiles(slice(0, self.form.size), self.tile):
                for parameter, product in self._derivatives(rows, cols, v[cols]):
                    results[id(parameter)][:, rows] += product
        return torch.cat([results[id(p)] for p in parameters]) if parameters else v.new_zeros(0, *v.shape)

    def _derivatives(self, rows: slice, cols: slice, v: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        block = self._block(rows, cols)
        if isinstance(self.form, Scaled):
            return self.form.derivatives_from(block, rows, cols, v)
        return self.form.derivatives(rows, cols, v, block)

    def cross(self, x_new: Tensor) -> CrossOperator:
        return self.cross_of(self.form.extended(x_new[:, None] if x_new.ndim == 1 else x_new))

    def cross_of(self, joint: KernelForm) -> CrossOperator:
        n = self.form.size
        return CrossOperator(joint, slice(n, joint.size), slice(0, n), self.tile)
