"""K never stored and never written: products and gradients fused into one kernel each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rtgp._kernels.composites import Scaled
from rtgp._kernels.form import KernelForm
from rtgp.errors import InputError, SettingError
from rtgp.operators._blocks import TILE_SIZES
from rtgp.operators._gpu.availability import SUPPORTED, stationary, supported
from rtgp.operators._gpu.near_tiles import cross_pairs, square_pair
from rtgp.operators._gpu.settings import Tuning, arithmetic_of
from rtgp.operators._protocol import CrossOperator, attach_gradients, columns
from rtgp.operators._tiled import TiledOperator


class TritonOperator(TiledOperator):
    """K(X, X) of one stationary kernel in float32, computed in fused GPU kernels and never stored.

    What is not fused (`contract`, `rows`) goes tile by tile as in `TiledOperator`.

    Parameters
    ----------
    form : KernelForm
        The kernel and its points.
    tile : int
        Rows and columns of a tile, where tiles are used.
    precision : str
        The arithmetic of the products.
    tuning : Tuning, optional
        Sizes of the work on a card.
    negligible : float
        Entries of the kernel of unit scale that may be left out. Where most tiles hold nothing else, only the other
        ones are visited.

    Examples
    --------
    It needs an NVIDIA GPU:

    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> X = torch.rand(20_000, 3, device="cuda")  # doctest: +SKIP
    >>> operators.make(gpytorch.kernels.RBFKernel().cuda(), X, operator="triton")  # doctest: +SKIP
    """

    def __init__(
        self,
        form: KernelForm,
        tile: int = TILE_SIZES["cuda"],
        precision: str = "float32",
        tuning: Tuning | None = None,
        negligible: float = 0.0,
    ) -> None:
        super().__init__(form, tile)
        leaf, reason = stationary(form), supported(form)
        if reason is not None or leaf is None:
            raise SettingError(f"{SUPPORTED}. Here {reason}. Use operator='auto' or 'tiled' instead.")
        self.precision, self.tuning = precision, tuning or Tuning()
        arithmetic_of(precision, self.tuning)
        self._leaf, self._negligible = leaf, negligible
        self._pair, self._order = square_pair(leaf.formula, leaf.z.detach(), negligible, self.tuning)

    @property
    def share(self) -> float:
        """The part of the tiles of K that are visited."""
        return min((tiles.share for tiles in self._pair.tiles.values()), default=1.0)

    def _there(self, v: Tensor) -> Tensor:
        return v if self._order is None else self._order.there(v)

    def _back(self, v: Tensor, dim: int = 0) -> Tensor:
        return v if self._order is None else self._order.back(v, dim)

    def matmul(self, v: Tensor) -> Tensor:
        from rtgp.operators._gpu.product import product
        from rtgp.operators._gpu.symmetric import symmetric_product

        v = self._there(_single(columns(v, self.form.size)))
        symmetric = self.tuning.fitted(self._pair.rows.width).symmetric and self.precision == "float32"
        if symmetric and not self._pair.tiles:
            return symmetric_product(self._pair, v, self.tuning).mul_(self._scale)
        return self._back(product(self._pair, v, self.precision, self.tuning)).mul_(self._scale)

    def wide_matmul(self, v: Tensor) -> Tensor:
        from rtgp.operators._gpu.product import product

        v = self._there(_single(columns(v, self.form.size)))
        return self._back(product(self._pair, v, "float32", self.tuning, wide=True)).mul_(self._scale)

    def bilinears(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return [self.bilinear(u, v) for u, v in pairs]

    def bilinear(self, u: Tensor, v: Tensor) -> Tensor:
        from rtgp.operators._gpu.gradient import gradient
        from rtgp.operators._gpu.product import product

        same = u is v
        u = self._there(_single(columns(u, self.form.size)))
        v = u if same else self._there(_single(columns(v, self.form.size)))
        if u.shape != v.shape:
            raise InputError(f"Expected u and v of one shape. Got {tuple(u.shape)} and {tuple(v.shape)}.")
        gradients = self._unit.zero_gradients() if not self._leaf.z.requires_grad else []
        if gradients:  # nothing to differentiate but, perhaps, the scale
            total = torch.sum(u.double() * product(self._pair, v, self.precision, self.tuning))
        else:
            total, by_z = gradient(self._pair, u, v, self.tuning)
            gradients = [self._back(by_z).mul_(self._scale)]
        if isinstance(self.form, Scaled):
            return attach_gradients(total * self._scale, self.form.tensors, [total, *gradients])
        return attach_gradients(total, self.form.tensors, gradients)

    def derivative_matmul(self, v: Tensor) -> Tensor:
        from rtgp.operators._gpu.derivative import derivative

        v = _single(columns(v, self.form.size))
        parameters = self.form.hyperparameters
        results = {id(p): v.new_zeros(p.numel(), *v.shape) for p in parameters}
        if isinstance(self.form, Scaled) and self.form.raw_scale is not None:
            by_scale = self.matmul(v).mul_(float(self.form.raw_scale.jacobian) / self._scale)
            results[id(self.form.raw_scale.parameter)] += by_scale
        if self._leaf.raw_lengthscale is not None:
            parts = self._back(derivative(self._pair, self._there(v), self.tuning), 1).mul_(self._scale)
            for parameter, product in self._leaf.derivatives_from(parts):
                results[id(parameter)] += product
        return torch.cat([results[id(p)] for p in parameters]) if parameters else v.new_zeros(0, *v.shape)

    def cross_of(self, joint: KernelForm) -> CrossOperator:
        n = self.form.size
        return TritonCross(joint, slice(n, joint.size), slice(0, n), self)


class HalfOperator(TritonOperator):
    """One half of K stored; everything but products as in `TritonOperator`."""

    def __init__(self, form: KernelForm, tile: int = TILE_SIZES["cuda"]) -> None:
        from rtgp.operators._gpu.half import store

        super().__init__(form, tile)
        self._half = store(self._pair)
        self._root = torch.full((1,), math.sqrt(self._scale), device=form.device)

    def renew(self, form: KernelForm, least_noise: Tensor | float = 0.0) -> bool:
        from rtgp.operators._gpu.half import store

        if form.size != self.form.size or form.device != self.form.device or supported(form) is not None:
            return False
        half, root = self._half, self._root
        TritonOperator.__init__(self, form, self.tile)
        self._half, self._root = store(self._pair, half), root.fill_(math.sqrt(self._scale))
        return True

    def matmul(self, v: Tensor) -> Tensor:
        from rtgp.operators._gpu.half import half_product

        return half_product(self._half, _single(columns(v, self.form.size)), self._scale)

    def scaled_matmul(self, v: Tensor, s: Tensor) -> Tensor:
        from rtgp.operators._gpu.half import half_product

        # scale S K S: the scale is read when this runs, not when it was recorded.
        return half_product(self._half, _single(columns(v, self.form.size)), 1.0, s * self._root)


class TritonCross(CrossOperator):
    """K(x_new, X), its products fused; tiles are left out as in K(X, X)."""

    def __init__(self, form: KernelForm, rows: slice, cols: slice, square: TritonOperator) -> None:
        super().__init__(form, rows, cols, square.tile)
        leaf = stationary(form)
        assert leaf is not None  # the operator this comes from has checked
        z = leaf.z.detach()
        self._scale, self._precision, self._tuning = square._scale, square.precision, square.tuning
        *self._pairs, order = cross_pairs(
            leaf.formula, z[rows], z[cols], square._order, square._negligible, square.tuning
        )
        self._orders = (order, square._order)

    def matmul(self, v: Tensor) -> Tensor:
        return self._product(0, columns(v, self.shape[1]))

    def transposed_matmul(self, v: Tensor) -> Tensor:
        return self._product(1, columns(v, self.shape[0]))

    def _product(self, side: int, v: Tensor) -> Tensor:
        from rtgp.operators._gpu.product import product

        ours, theirs = self._orders[side], self._orders[1 - side]
        v = _single(v) if theirs is None else theirs.there(_single(v))
        result = product(self._pairs[side], v, self._precision, self._tuning).mul_(self._scale)
        return result if ours is None else ours.back(result)


def _single(v: Tensor) -> Tensor:
    if v.dtype != torch.float32:
        raise InputError(f"Expected right-hand sides in float32, as the kernel matrix is. Got {v.dtype}.")
    return v
