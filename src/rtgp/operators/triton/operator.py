"""K never stored and never written: products and gradients fused into one kernel each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rtgp.errors import InputError, SettingError
from rtgp.kernels.forms import KernelForm, Scaled
from rtgp.operators.protocol import CrossOperator, attach_gradients, columns
from rtgp.operators.tiled import TiledOperator
from rtgp.operators.triton.availability import SUPPORTED, stationary, supported
from rtgp.operators.triton.points import prepare
from rtgp.operators.triton.settings import Tuning, arithmetic_of


class TritonOperator(TiledOperator):
    """K(X, X) of one stationary kernel, float32. What is not fused (`contract`, `derivative_matmul`, `rows`) goes tile
    by tile as in `TiledOperator`."""

    def __init__(
        self, form: KernelForm, tile: int = 4096, precision: str = "float32", tuning: Tuning | None = None
    ) -> None:
        super().__init__(form, tile)
        leaf, reason = stationary(form), supported(form)
        if reason is not None or leaf is None:
            raise SettingError(f"{SUPPORTED}. Here {reason}. Use operator='auto' or 'tiled' instead.")
        self.precision, self.tuning = precision, tuning or Tuning()
        arithmetic_of(precision, self.tuning)
        self._leaf = leaf
        self._pair = prepare(leaf.formula.name, leaf.z.detach(), None, self.tuning.direct)

    def matmul(self, v: Tensor) -> Tensor:
        from rtgp.operators.triton.product import product
        from rtgp.operators.triton.symmetric import symmetric_product

        v = _single(columns(v, self.form.size))
        if self.tuning.fitted(self._pair.rows.width).symmetric and self.precision == "float32":
            return symmetric_product(self._pair, v, self.tuning).mul_(self._scale)
        return product(self._pair, v, self.precision, self.tuning).mul_(self._scale)

    def wide_matmul(self, v: Tensor) -> Tensor:
        from rtgp.operators.triton.product import product

        v = _single(columns(v, self.form.size))
        return product(self._pair, v, "float32", self.tuning, wide=True).mul_(self._scale)

    def bilinears(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return [self.bilinear(u, v) for u, v in pairs]

    def bilinear(self, u: Tensor, v: Tensor) -> Tensor:
        from rtgp.operators.triton.gradient import gradient
        from rtgp.operators.triton.product import product

        same = u is v
        u = _single(columns(u, self.form.size))
        v = u if same else _single(columns(v, self.form.size))
        if u.shape != v.shape:
            raise InputError(f"Expected u and v of one shape. Got {tuple(u.shape)} and {tuple(v.shape)}.")
        gradients = self._unit.zero_gradients() if not self._leaf.z.requires_grad else []
        if gradients:  # nothing to differentiate but, perhaps, the scale
            total = torch.sum(u.double() * product(self._pair, v, self.precision, self.tuning))
        else:
            total, by_z = gradient(self._pair, u, v, self.tuning)
            gradients = [by_z.mul_(self._scale)]
        if isinstance(self.form, Scaled):
            return attach_gradients(total * self._scale, self.form.tensors, [total, *gradients])
        return attach_gradients(total, self.form.tensors, gradients)

    def cross(self, x_new: Tensor) -> CrossOperator:
        n = self.form.size
        joint = self.form.extended(x_new[:, None] if x_new.ndim == 1 else x_new)
        return TritonCross(
            joint, slice(n, joint.size), slice(0, n), self.tile, self._scale, self.precision, self.tuning
        )


class HalfOperator(TritonOperator):
    """One half of K stored; everything but products as in `TritonOperator`."""

    def __init__(self, form: KernelForm, tile: int = 4096) -> None:
        from rtgp.operators.triton.half import store

        super().__init__(form, tile)
        self._half = store(self._pair)
        self._root = torch.full((1,), math.sqrt(self._scale), device=form.device)

    def renew(self, form: KernelForm) -> bool:
        from rtgp.operators.triton.half import store

        if form.size != self.form.size or form.device != self.form.device or supported(form) is not None:
            return False
        half, root = self._half, self._root
        TritonOperator.__init__(self, form, self.tile)
        self._half, self._root = store(self._pair, half), root.fill_(math.sqrt(self._scale))
        return True

    def matmul(self, v: Tensor) -> Tensor:
        from rtgp.operators.triton.half import half_product

        return half_product(self._half, _single(columns(v, self.form.size)), self._scale)

    def whitened_matmul(self, v: Tensor, s: Tensor) -> Tensor:
        from rtgp.operators.triton.half import half_product

        # scale S K S: the scale is read when this runs, not when it was recorded.
        return half_product(self._half, _single(columns(v, self.form.size)), 1.0, s * self._root)


class TritonCross(CrossOperator):
    """K(x_new, X), its products fused."""

    def __init__(
        self, form: KernelForm, rows: slice, cols: slice, tile: int, scale: float, precision: str, tuning: Tuning
    ) -> None:
        super().__init__(form, rows, cols, tile)
        leaf = stationary(form)
        assert leaf is not None  # the operator this comes from has checked
        z = leaf.z.detach()
        self._scale, self._precision, self._tuning = scale, precision, tuning
        self._pairs = (
            prepare(leaf.formula.name, z[rows], z[cols], tuning.direct),
            prepare(leaf.formula.name, z[cols], z[rows], tuning.direct),
        )

    def matmul(self, v: Tensor) -> Tensor:
        return self._product(0, columns(v, self.shape[1]))

    def transposed_matmul(self, v: Tensor) -> Tensor:
        return self._product(1, columns(v, self.shape[0]))

    def _product(self, side: int, v: Tensor) -> Tensor:
        from rtgp.operators.triton.product import product

        return product(self._pairs[side], _single(v), self._precision, self._tuning).mul_(self._scale)


def _single(v: Tensor) -> Tensor:
    if v.dtype != torch.float32:
        raise InputError(f"Expected right-hand sides in float32, as the kernel matrix is. Got {v.dtype}.")
    return v
