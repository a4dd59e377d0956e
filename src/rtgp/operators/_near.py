"""K without the tiles that hold nothing that counts: each other tile is computed once and used on both sides.

What is left out of a row adds up to at most a bound beside the smallest noise (`TileSettings.bound`), so that
A = S K S + I stays positive definite and the objective moves by about so much per point at the most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from rtgp._kernels.composites import Scaled
from rtgp._kernels.form import Gradients, KernelForm, unique
from rtgp._memory import is_out_of_memory
from rtgp._threads import in_threads, sum_of
from rtgp.errors import SettingError
from rtgp.operators._blocks import TILE_SIZES
from rtgp.operators._near_blocks import Block, Part, parts
from rtgp.operators._near_cross import NearCross
from rtgp.operators._near_plan import NearPlan, plan_of
from rtgp.operators._order import DEFAULT, TileSettings
from rtgp.operators._product import padded_columns, sided_products, wide_product
from rtgp.operators._protocol import CrossOperator, attach_gradients, columns
from rtgp.operators._tiled import TiledOperator

_log = logging.getLogger("rtgp")

Result = TypeVar("Result")


class NearOperator(TiledOperator):
    """K(X, X) by the tiles that hold an entry that counts beside the noise.

    What is left out of a row of K adds up to at most `TileSettings.bound` times the noise. `contract` and `rows` go
    over all of K.

    Parameters
    ----------
    form : KernelForm
        The kernel and its points.
    tile : int
        Rows and columns of a tile, where all of K is gone over.
    least_noise : float
        The smallest variance of the noise, beside which entries may be negligible.
    plan : NearPlan, optional
        Which tiles are computed. By default it is made here.
    stored : bool
        Whether the tiles are kept in memory: one half of them, for the others are their mirror images.
    settings : TileSettings
        How large tiles are, and what may be left out.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> X = torch.linspace(0, 1000, 1000)[:, None]
    >>> K = operators.make(gpytorch.kernels.RBFKernel(), X, operator="near", least_noise=0.01)
    >>> K.matmul(torch.ones(1000, 2)).shape, K.share < 0.3
    (torch.Size([1000, 2]), True)
    """

    def __init__(
        self,
        form: KernelForm,
        tile: int = TILE_SIZES["cpu"],
        least_noise: float = 0.0,
        plan: NearPlan | None = None,
        stored: bool = False,
        settings: TileSettings = DEFAULT,
    ) -> None:
        super().__init__(form, tile)
        plan = plan_of(form, least_noise, settings, share=1.0) if plan is None else plan
        if plan is None:
            raise unknown()
        self.plan, self._settings = plan, settings
        self._size, self._parts = plan.leaves.size, parts(plan)
        self._ordered = self._in_order()
        self._kept: dict[Block, Tensor] = {}
        if stored:
            self._store()

    @property
    def share(self) -> float:
        """Of the tiles of K, that count."""
        return self.plan.share

    @property
    def stored(self) -> bool:
        """Whether they are kept in memory."""
        return bool(self._kept)

    def renew(self, form: KernelForm, least_noise: Tensor | float = 0.0) -> bool:
        """Become the operator of another kernel while the plan serves: the tiles are the same ones.

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
        if not same or not self.plan.serves(form, float(least_noise), self._settings):
            return False
        TiledOperator.__init__(self, form, self.tile)
        self._ordered = self._in_order()
        if self._kept:
            self._store()
        return True

    def _in_order(self) -> KernelForm:
        """The form without its scale, of the points in the plan's order, without history."""
        with torch.no_grad():
            return self._unit.taken(self.plan.padded)

    def _store(self) -> None:
        def work(part: Part) -> dict[Block, Tensor]:
            found = {}
            for block in part.blocks:
                made = self._ordered.block(block.rows, block.columns())
                found[block] = self._kept[block].copy_(made) if block in self._kept else made
            return found

        try:
            for found in self._over_parts(work):
                self._kept.update(found)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._kept = {}
            _log.warning("There was no memory left to store the tiles of K(X, X): every product computes them.")

    def _entries_of(self, block: Block) -> Tensor:
        """The unscaled entries; the caller does not write to them."""
        kept = self._kept.get(block)
        return self._ordered.block(block.rows, block.columns()) if kept is None else kept

    def _over_parts(self, work: Callable[[Part], Result]) -> list[Result]:
        """work(part) for all of them, in their order, over threads."""
        parallel = self.form.closed and self.device.type == "cpu"
        found = in_threads(lambda which: [work(part) for part in self._parts[which]], len(self._parts), parallel)
        return [one for several in found for one in several]

    def _there(self, v: Tensor) -> Tensor:
        """(n, r) in the plan's order, filled up with zeros, (leaves * size, r)."""
        result = v.new_zeros(len(self.plan.padded), v.shape[1])
        result[: len(v)] = v[self.plan.leaves.order]
        return result

    def _back(self, v: Tensor, dim: int = 0) -> Tensor:
        return v.index_select(dim, self.plan.inverse)

    def matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size)
        return self._product(v, sided_products)[:, : v.shape[1]].mul_(self._scale)

    def wide_matmul(self, v: Tensor) -> Tensor:
        v = columns(v, self.form.size).double()
        return self._product(v, _wide_products)[:, : v.shape[1]].mul_(self._scale)

    def _product(self, v: Tensor, products: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        if v.shape[1] == 0:
            return torch.zeros_like(v)
        v, size = self._there(padded_columns(v)), self._size
        r = v.shape[1]
        v = v.view(-1, size, r)

        def work(part: Part) -> Tensor:
            total = v.new_zeros(len(part.touched), size, r)
            for block in part.blocks:
                k, own = self._entries_of(block), block.own
                ours, theirs = products(k, v[block.leaves].view(-1, r), v[block.row])
                total[block.row_place] += ours
                total.index_add_(0, block.place[own:], theirs.reshape(-1, size, r)[own:])
            return total

        return self._back(self._gathered(work, (size, r), v).view(-1, r))

    def _gathered(self, work: Callable[[Part], Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The sum of what each part adds to its leaves, (leaves, *shape)."""
        result = like.new_zeros(self.plan.leaves.count, *shape)
        for part, total in zip(self._parts, self._over_parts(work), strict=True):
            result.index_add_(0, part.touched, total)
        return result

    def bilinears(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        sides = [(self._there(columns(u, self.form.size)), self._there(columns(v, self.form.size))) for u, v in pairs]
        # The symmetric part of sum_r u_r v_r^T.
        outer = [(torch.cat([u, v], dim=1) * 0.5, torch.cat([v, u], dim=1)) for u, v in sides]
        differentiable = any(t.requires_grad for t in self._unit.tensors)

        def work(part: Part) -> list[tuple[Tensor, Gradients]]:
            totals = [torch.zeros((), dtype=torch.float64, device=self.device) for _ in outer]
            gradients = [self._ordered.zero_gradients() for _ in outer]
            for block in part.blocks:
                k, cols = self._entries_of(block), block.columns()
                weights = [left[block.rows] @ right[cols].T for left, right in outer]
                for total, weight in zip(totals, weights, strict=True):
                    weight[:, block.own * self._size :] *= 2.0  # the mirror image below the diagonal
                    total += torch.sum(weight * k, dtype=torch.float64)
                if differentiable:
                    weights = [weight.mul_(self._scale) for weight in weights]
                    self._ordered.pullbacks(block.rows, cols, weights, gradients, k)
            return list(zip(totals, gradients, strict=True))

        parts = self._over_parts(work)
        with torch.enable_grad():
            ordered = self.form.taken(self.plan.padded)
        found = []
        for number in range(len(outer)):
            total = sum_of([part[number][0] for part in parts])
            slopes = [sum_of(list(each)) for each in zip(*(part[number][1] for part in parts), strict=True)]
            if isinstance(self.form, Scaled):
                found.append(attach_gradients(total * self._scale, ordered.tensors, [total, *slopes]))
            else:
                found.append(attach_gradients(total, ordered.tensors, slopes))
        return found

    def derivative_matmul(self, v: Tensor) -> Tensor:
        v, size, r = self._there(columns(v, self.form.size)), self._size, v.shape[1]
        parameters = unique(self.form.hyperparameters)
        if not parameters:
            return v.new_zeros(0, self.form.size, r)
        with torch.no_grad():
            ordered = self.form.taken(self.plan.padded)
        begin, count = {}, 0
        for parameter in parameters:
            begin[id(parameter)], count = slice(count, count + parameter.numel()), count + parameter.numel()

        def work(part: Part) -> Tensor:
            total = v.new_zeros(len(part.touched), count, size, r)
            for block in part.blocks:
                k, cols, own = self._entries_of(block), block.columns(), block.own
                for parameter, product in _derivatives(ordered, k, block.rows, cols, v[cols]):
                    total[block.row_place, begin[id(parameter)]] += product
                others, mirror = cols[own * size :], k[:, own * size :].T
                if len(others) == 0:
                    continue
                for parameter, product in _derivatives(ordered, mirror, others, block.rows, v[block.rows]):
                    tiles = product.view(product.shape[0], len(others) // size, size, r).movedim(1, 0)
                    total[:, begin[id(parameter)]].index_add_(0, block.place[own:], tiles)
            return total

        result = self._gathered(work, (count, size, r), v).movedim(1, 0).reshape(count, len(v), r)
        return self._back(result, 1)

    def cross_of(self, joint: KernelForm) -> CrossOperator:
        n = self.form.size
        return NearCross(joint, slice(n, joint.size), slice(0, n), self.tile, self.plan, self._settings)


def unknown() -> SettingError:
    """Why there is no plan."""
    return SettingError(
        "The 'near' operator leaves out what is negligible beside the noise. It needs an RBF, Matern or piecewise "
        "polynomial kernel, scaled or in sums, and the noise. Here one of these is missing. Use operator='auto', "
        "'dense' or 'tiled' instead."
    )


def _derivatives(
    form: KernelForm, k: Tensor, rows: slice | Tensor, cols: slice | Tensor, v: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """dK[rows, cols] v by each hyperparameter of a form, k its unscaled block."""
    if isinstance(form, Scaled):
        return form.derivatives_from(k, rows, cols, v)
    return form.derivatives(rows, cols, v, k)


def _wide_products(k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return wide_product(k, v), wide_product(k.T, w)
