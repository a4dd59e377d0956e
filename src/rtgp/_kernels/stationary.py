"""A stationary kernel as a form: closed formulas of the squared distance for blocks and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy

import torch
from torch import Tensor

from rtgp._kernels.form import Gradients, Index, KernelForm, Pullback, add_rows
from rtgp._kernels.formulas import (
    RadialFormula,
    centre,
    difference_sums,
    gathered_difference_sums,
    gathered_squared_distances,
    squared_difference_products,
    squared_distances,
)
from rtgp._kernels.raw import Raw


class Stationary(KernelForm):
    """k(|z_i - z_j|^2) with z = x / lengthscale, kept in float64 whatever the working precision."""

    closed = True

    def __init__(
        self,
        formula: RadialFormula,
        x: Tensor,  # (n, d)
        lengthscale: Tensor,  # (1, d) or (1, 1), with its history
        raw_lengthscale: Raw | None,
        select: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self.formula, self.x, self.select = formula, x, select
        self.lengthscale, self.raw_lengthscale = lengthscale, raw_lengthscale
        self.size, self.dtype, self.device = x.shape[0], dtype, x.device
        # Only differences matter: centring keeps the expanded squares small.
        x = x.double()
        self.z = (x - centre(x.detach())) / lengthscale.double()  # (n, d)
        self._z = self.z.detach()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.z,)

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        return () if self.raw_lengthscale is None else (self.raw_lengthscale.parameter,)

    def _squared(self, rows: Index, cols: Index) -> Tensor:
        return squared_distances(self._z[rows], self._z[cols]).to(self.dtype)

    def block(self, rows: Index, cols: Index) -> Tensor:
        return self.formula.value(self._squared(rows, cols))

    def diagonal(self) -> Tensor:
        return torch.ones(self.size, dtype=self.dtype, device=self.device)

    def _slope(self, rows: Index, cols: Index, block: Tensor | None) -> Tensor:
        if block is not None and self.formula.slope_from_value is not None:
            return self.formula.slope_from_value(block)
        return self.formula.slope(self._squared(rows, cols))

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        self.pullbacks(rows, cols, [weight], [into], block)

    def pullbacks(
        self,
        rows: Index,
        cols: Index,
        weights: Sequence[Tensor],
        into: Sequence[Gradients],
        block: Tensor | None = None,
    ) -> None:
        # dz_i += sum_j 2 H_ij (z_i - z_j),  dz_j -= sum_i 2 H_ij (z_i - z_j),  H = weight * slope.
        # In float64: the same H enters both terms of each difference, so that nothing is lost in it.
        slope, (z_rows, z_cols) = self._slope(rows, cols, block), (self._z[rows], self._z[cols])
        for weight, gradients in zip(weights, into, strict=True):
            by_rows, by_cols = difference_sums((slope * weight).double(), z_rows, z_cols)
            gradients[0][rows] += 2.0 * by_rows
            gradients[0][cols] += 2.0 * by_cols

    def gathered(self, index: Tensor) -> Tensor:
        return self.formula.value(gathered_squared_distances(self._z[index]).to(self.dtype))

    def gathered_pullback(self, index: Tensor, weight: Tensor, into: Gradients, blocks: Tensor | None = None) -> None:
        z = self._z[index]  # (b, k, d)
        if blocks is not None and self.formula.slope_from_value is not None:
            slope = self.formula.slope_from_value(blocks)
        else:
            slope = self.formula.slope(gathered_squared_distances(z).to(self.dtype))
        self._pull(index, z, slope, weight, into)

    def gathered_with_pullback(self, index: Tensor) -> tuple[Tensor, Pullback]:
        z = self._z[index]
        blocks, slope = self.formula.both(gathered_squared_distances(z).to(self.dtype))
        return blocks, lambda weight, into: self._pull(index, z, slope, weight, into)

    def _pull(self, index: Tensor, z: Tensor, slope: Tensor, weight: Tensor, into: Gradients) -> None:
        h = slope.double() * weight
        gradient = gathered_difference_sums(h + h.mT, z).mul_(2.0)  # dz_i = 2 sum_j (H_ij + H_ji) (z_i - z_j)
        add_rows(into[0], index.reshape(-1), gradient.reshape(-1, z.shape[2]))

    def derivatives(
        self, rows: Index, cols: Index, v: Tensor, block: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        # dK/dl_a = 2 slope (z_ia - z_ja)^2 (-1 / l_a)
        if self.raw_lengthscale is None:
            return
        parts = squared_difference_products(self._z[rows], self._z[cols], self._slope(rows, cols, block), v)
        yield from self.derivatives_from(parts)

    def derivatives_from(self, parts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The same, given sum_j slope_ij (z_ia - z_ja)^2 v_j for every input a, (d, m, r)."""
        if self.raw_lengthscale is not None:
            products = self._chain(parts.double() * -2.0).to(self.dtype)
            yield self.raw_lengthscale.parameter, self.raw_lengthscale.among_all(products)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        if self.raw_lengthscale is None:
            return
        h = self._slope(rows, cols, None).double().mul_(-2.0)
        difference = self._z[rows].T[:, :, None] - self._z[cols].T[:, None, :]  # (d, m, k)
        tangents = self._chain(difference.square_().mul_(h)).to(self.dtype)
        yield self.raw_lengthscale.parameter, self.raw_lengthscale.among_all(tangents)

    def _chain(self, per_input: Tensor) -> Tensor:
        """From d/dlog-like parts per input (d, ...) to derivatives with respect to raw_lengthscale (numel, ...)."""
        assert self.raw_lengthscale is not None
        jacobian = self.raw_lengthscale.jacobian.reshape(-1)
        factor = jacobian / self.lengthscale.detach().double().reshape(-1)
        if jacobian.numel() == 1:
            per_input = per_input.sum(0, keepdim=True)
        return per_input * factor.reshape(-1, *([1] * (per_input.ndim - 1)))

    def extended(self, x_new: Tensor) -> KernelForm:
        x = torch.cat([self.x, self.select(x_new)])
        return Stationary(self.formula, x, self.lengthscale, self.raw_lengthscale, self.select, self.dtype)

    def taken(self, index: Tensor) -> KernelForm:
        result = copy(self)  # of the same centre: its entries are the same to the last bit
        result.size, result.x, result.z = index.numel(), self.x[index], self.z[index]
        result._z = result.z.detach()
        return result

    def widened(self) -> KernelForm | None:
        x, wide = self.x, torch.float64
        return Stationary(self.formula, x, self.lengthscale, self.raw_lengthscale, self.select, wide)
