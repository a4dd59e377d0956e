"""Points in an order in which near ones stand together, and the tiles of K that are not negligible. Plain torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from rtgp._kernels.formulas import RadialFormula, negligible_beyond
from rtgp.operators._gpu.points import Pair, padded_width, prepare
from rtgp.operators._gpu.settings import Tuning
from rtgp.operators._order import DEFAULT, Leaves, TileSettings, boxed, leaves_of, near_share, tile_list


@dataclass(frozen=True)
class Order:
    """The places of points, there and back."""

    order: Tensor  # (n,)
    inverse: Tensor

    @staticmethod
    def of(order: Tensor) -> Order:
        return Order(order, order.argsort())

    def there(self, v: Tensor, dim: int = 0) -> Tensor:
        return v.index_select(dim, self.order)

    def back(self, v: Tensor, dim: int = 0) -> Tensor:
        return v.index_select(dim, self.inverse)


def share_of_tiles(formula: RadialFormula, z: Tensor, negligible: float, settings: TileSettings = DEFAULT) -> float:
    """Of those of K(z, z), that may hold more than `negligible`."""
    limit = negligible_beyond(formula, negligible)
    if negligible <= 0.0 or math.isinf(limit):
        return 1.0
    leaves = leaves_of(z, leaf_size(z.shape[1], Tuning()))
    return near_share(leaves, leaves, limit, settings)


def leaf_size(dimensions: int, tuning: Tuning) -> int:
    """Of which all blocks are multiples."""
    fitted = tuning.fitted(padded_width(dimensions) if dimensions > tuning.direct else 0)
    return min(fitted.block_rows, fitted.block_columns, fitted.gradient_rows, fitted.gradient_columns)


def square_pair(
    formula: RadialFormula, z: Tensor, negligible: float, tuning: Tuning, settings: TileSettings = DEFAULT
) -> tuple[Pair, Order | None]:
    """K(z, z), z (n, d) centred float64; the order of its points where a list of its tiles pays."""
    limit = negligible_beyond(formula, negligible) if negligible > 0.0 else math.inf
    if math.isfinite(limit):
        leaves = leaves_of(z, leaf_size(z.shape[1], tuning))
        if near_share(leaves, leaves, limit, settings) <= settings.share:
            pair = prepare(formula.name, z[leaves.order], None, tuning.direct)
            fitted = tuning.fitted(pair.rows.width)
            shapes = (
                (fitted.block_rows, fitted.block_columns),
                (fitted.gradient_rows, fitted.gradient_columns),
            )
            return _listed(pair, leaves, leaves, limit, shapes, settings), Order.of(leaves.order)
    return prepare(formula.name, z, None, tuning.direct), None


def cross_pairs(
    formula: RadialFormula,
    z_new: Tensor,
    z: Tensor,
    order: Order | None,
    negligible: float,
    tuning: Tuning,
    settings: TileSettings = DEFAULT,
) -> tuple[Pair, Pair, Order | None]:
    """K(z_new, z), its mirror image, and the order of the new points. `order` is that of z, where K(z, z) has one."""
    if order is None:
        a, b = prepare(formula.name, z_new, z, tuning.direct), prepare(formula.name, z, z_new, tuning.direct)
        return a, b, None
    size = leaf_size(z.shape[1], tuning)
    limit, rows, columns = negligible_beyond(formula, negligible), leaves_of(z_new, size), boxed(z, order.order, size)
    there, back = (
        prepare(formula.name, first, second, tuning.direct)
        for first, second in ((z_new[rows.order], z[order.order]), (z[order.order], z_new[rows.order]))
    )
    fitted = tuning.fitted(there.rows.width)
    shapes = ((fitted.block_rows, fitted.block_columns),)
    return (
        _listed(there, rows, columns, limit, shapes, settings),
        _listed(back, columns, rows, limit, shapes, settings),
        Order.of(rows.order),
    )


def _listed(
    pair: Pair,
    rows: Leaves,
    columns: Leaves,
    limit: float,
    shapes: tuple[tuple[int, int], ...],
    settings: TileSettings,
) -> Pair:
    size = rows.size
    lists = {
        (height, width): tile_list(rows, columns, limit, height // size, width // size, settings)
        for height, width in shapes
    }
    return replace(pair, tiles=lists)
