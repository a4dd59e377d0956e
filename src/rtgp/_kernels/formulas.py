"""Stationary kernels of unit lengthscale as functions of the squared distance.

`value(D)` is k(D) with k(0) = 1 and `slope(D)` is dk/dD, the only derivative that gradients with respect to
lengthscales and inputs need: with z = x / lengthscale and D_ij = |z_i - z_j|^2, dk_ij/dz_i = 2 slope(D_ij) (z_i - z_j).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_SQRT3 = math.sqrt(3.0)
_SQRT5 = math.sqrt(5.0)


@dataclass(frozen=True)
class RadialFormula:
    """A stationary kernel of unit lengthscale and unit outputscale."""

    name: str
    value: Callable[[Tensor], Tensor]  # D -> k(D); may overwrite D
    slope: Callable[[Tensor], Tensor]  # D -> dk/dD; may overwrite D
    both: Callable[[Tensor], tuple[Tensor, Tensor]]  # D -> (k(D), dk/dD), roots and exponentials once; may overwrite D
    slope_from_value: Callable[[Tensor], Tensor] | None = None  # k(D) -> dk/dD where that needs no D
    support: float = math.inf  # the squared distance from which on k is 0


# exp of less than this is not worth its time: denormal numbers make it, and every product with it, many times slower.
_SMALLEST_EXPONENT = {torch.float32: -60.0, torch.float64: -600.0}


def _exp(exponent: Tensor) -> Tensor:
    """exp in place, for exponents that are never positive."""
    return exponent.clamp_min_(_SMALLEST_EXPONENT[exponent.dtype]).exp_()


def _rbf_value(squared: Tensor) -> Tensor:
    return _exp(squared.mul_(-0.5))


def _rbf_slope(squared: Tensor) -> Tensor:
    return _rbf_value(squared).mul_(-0.5)


def _rbf_both(squared: Tensor) -> tuple[Tensor, Tensor]:
    value = _rbf_value(squared)
    return value, value * -0.5


def _matern12_value(squared: Tensor) -> Tensor:
    return _exp(squared.sqrt_().neg_())


def _matern12_both(squared: Tensor) -> tuple[Tensor, Tensor]:
    distance = squared.sqrt_()
    value = _exp(-distance)
    # k is not differentiable at 0; the symmetric choice, 0, is what a pair of equal points contributes.
    return value, (value / distance).mul_(-0.5).masked_fill_(distance == 0, 0.0)


def _matern12_slope(squared: Tensor) -> Tensor:
    return _matern12_both(squared)[1]


def _scaled(squared: Tensor, factor: float) -> Tensor:
    """factor * distance, in place, as far as it counts: beyond, a polynomial times what is left of exp would grow."""
    return squared.sqrt_().mul_(factor).clamp_max_(-_SMALLEST_EXPONENT[squared.dtype])


def _matern32_value(squared: Tensor) -> Tensor:
    scaled = _scaled(squared, _SQRT3)
    return scaled.neg().exp_().mul_(scaled.add_(1.0))


def _matern32_slope(squared: Tensor) -> Tensor:
    return _exp(squared.sqrt_().mul_(-_SQRT3)).mul_(-1.5)


def _matern32_both(squared: Tensor) -> tuple[Tensor, Tensor]:
    scaled = _scaled(squared, _SQRT3)
    exponential = scaled.neg().exp_()
    return scaled.add_(1.0).mul_(exponential), exponential.mul_(-1.5)


def _matern52_value(squared: Tensor) -> Tensor:
    scaled = _scaled(squared, _SQRT5)
    return scaled.neg().exp_().mul_(scaled.square().div_(3.0).add_(scaled).add_(1.0))


def _matern52_slope(squared: Tensor) -> Tensor:
    scaled = _scaled(squared, _SQRT5)
    return scaled.neg().exp_().mul_(scaled.add_(1.0)).mul_(-5.0 / 6.0)


def _matern52_both(squared: Tensor) -> tuple[Tensor, Tensor]:
    scaled = _scaled(squared, _SQRT5)
    exponential = scaled.neg().exp_()
    value = scaled.square().div_(3.0).add_(scaled).add_(1.0).mul_(exponential)
    return value, scaled.add_(1.0).mul_(exponential).mul_(-5.0 / 6.0)


RBF = RadialFormula("rbf", _rbf_value, _rbf_slope, _rbf_both, slope_from_value=lambda value: value * -0.5)
MATERN12 = RadialFormula("matern12", _matern12_value, _matern12_slope, _matern12_both)
MATERN32 = RadialFormula("matern32", _matern32_value, _matern32_slope, _matern32_both)
MATERN52 = RadialFormula("matern52", _matern52_value, _matern52_slope, _matern52_both)

MATERN = {0.5: MATERN12, 1.5: MATERN32, 2.5: MATERN52}


def negligible_beyond(formula: RadialFormula, entry: float) -> float:
    """The squared distance beyond which a kernel is at most `entry`; infinite where it never is.

    The same bound holds for 2 D `|dk/dD|`, of which a derivative by a lengthscale is a sum.
    """
    if math.isfinite(formula.support):
        return formula.support

    def size(squared: float) -> float:
        value, slope = formula.both(torch.tensor([squared], dtype=torch.float64))
        return max(float(value), 2.0 * squared * abs(float(slope)))

    # For D > 4 all of them decrease.
    low, high = 4.0, 8.0
    while size(high) > entry:
        if high > _LARGEST_SQUARE:
            return math.inf
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if size(middle) > entry else (low, middle)
    return high


_LARGEST_SQUARE = 1e6  # where the kernels in float64 have come to their smallest number
_HALVINGS = 20

# Up to this many inputs the differences are formed one by one: exact, and cheaper than a product.
_DIRECT_DIMENSIONS = 4
_DIRECT_NUMBERS = 2**21  # or so many of them at once, which take 16 MiB: a row or two of K
# Below this fraction of |a|^2 + |b|^2 an expanded square has lost half of its digits.
_CANCELLED = 1e-6


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """|a_i - b_j|^2 for a (m, d), b (k, d), both float64 and centred -> (m, k) float64, never negative, 0 for equals.

    float64 throughout: in float32 the expanded square |a|^2 + |b|^2 - 2 a.b cancels to an absolute error of
    1e-7 |a|^2, which in K is a perturbation of the size of a small noise. Even in float64 the square root in the Matern
    kernels turns 1e-16 into 1e-8: near pairs are formed from their differences.
    """
    if a.shape[1] <= _DIRECT_DIMENSIONS:
        return _from_differences(a, b)
    if a.shape[0] * b.shape[0] * a.shape[1] <= _DIRECT_NUMBERS and min(a.shape[0], b.shape[0]) <= 2:
        return (a[:, None] - b[None]).square_().sum(-1)
    norm_a = a.square().sum(1, keepdim=True)  # (m, 1)
    norm_b = b.square().sum(1, keepdim=True)  # (k, 1)
    left = torch.cat([a.mul(-2.0), norm_a, torch.ones_like(norm_a)], dim=1)  # (m, d + 2)
    right = torch.cat([b, torch.ones_like(norm_b), norm_b], dim=1)  # (k, d + 2)
    result = left @ right.T
    if result.numel() == 0:
        return result
    i, j = torch.nonzero(result < _CANCELLED * (norm_a.max() + norm_b.max()), as_tuple=True)
    if i.numel() * a.shape[1] > result.numel() + a.shape[0] * a.shape[1]:  # many: one point far from all the others
        return _from_differences(a, b)
    result[i, j] = (a[i] - b[j]).square_().sum(1)
    return result


def _from_differences(a: Tensor, b: Tensor) -> Tensor:
    result = torch.zeros(a.shape[0], b.shape[0], dtype=a.dtype, device=a.device)
    for k in range(a.shape[1]):
        difference = a[:, k, None] - b[None, :, k]
        result.addcmul_(difference, difference)
    return result


_SAMPLE = 1000  # rows whose median stands for that of all


def centre(x: Tensor) -> Tensor:
    """A point among the rows of x (n, d), (d,): about the median.

    It is not the mean. A row that is 10^6 times as far away as the others would move the mean, and for all others what
    is between them would be a small difference of large numbers.
    """
    rows: Tensor = x[:: max(1, x.shape[0] // _SAMPLE)].sort(0).values
    return rows[rows.shape[0] // 2]


_FAR = 30.0  # lengthscales from the centre


def difference_sums(h: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j h_ij (a_i - b_j), (m, d), and sum_i h_ij (b_j - a_i), (n, d); h (m, n), a (m, d), b (n, d), all float64.

    By two products each, unless points are so far from the centre that near ones, with large h, would be lost in them.
    """
    if _largest(a, b) <= _FAR**2:
        return h.sum(1, keepdim=True) * a - h @ b, h.sum(0)[:, None] * b - h.T @ a
    by_a, by_b = torch.empty_like(a), torch.empty_like(b)
    for k in range(a.shape[1]):
        weighted = (a[:, k, None] - b[None, :, k]).mul_(h)
        by_a[:, k], by_b[:, k] = weighted.sum(1), -weighted.sum(0)
    return by_a, by_b


def _largest(*points: Tensor) -> float:
    """The largest square of a coordinate. Waits for a card once."""
    largest = [p.square().max() for p in points if p.numel()]
    return float(torch.stack(largest).max()) if largest else 0.0


def gathered_squared_distances(z: Tensor) -> Tensor:
    """|z_bi - z_bj|^2 within each set of z (b, k, d) -> (b, k, k), from differences: exact for near points."""
    # On a card many small `cdist` take ten times as long as reading and writing all blocks for each input.
    if z.shape[2] > _DIRECT_DIMENSIONS and not z.is_cuda:
        return torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square_()
    result = z.new_zeros(z.shape[0], z.shape[1], z.shape[1])
    for column in z.movedim(2, 0).contiguous():
        difference = column[:, :, None] - column[:, None, :]
        result.addcmul_(difference, difference)
    return result


def gathered_difference_sums(h: Tensor, z: Tensor) -> Tensor:
    """sum_j h_bij (z_bi - z_bj), (b, k, d); h (b, k, k), z (b, k, d), both float64."""
    z = z - z[:, -1:]
    if z.shape[2] > _DIRECT_DIMENSIONS and _largest(z) <= _FAR**2:
        return h.sum(-1, keepdim=True) * z - h @ z
    columns = [(c[:, :, None] - c[:, None, :]).mul_(h).sum(-1) for c in z.movedim(2, 0).contiguous()]
    return torch.stack(columns, dim=-1)


# Up to this relative error the products below are taken from expanded squares.
_ROUNDED = 1e-3


def squared_difference_products(a: Tensor, b: Tensor, h: Tensor, v: Tensor) -> Tensor:
    """sum_j h_ij (a_ik - b_jk)^2 v_j for each input k, (d, m, r); a (m, d) and b (n, d) float64, h (m, n), v (n, r)."""
    (n, d), r = b.shape, v.shape[1]
    largest = _largest(a, b) * torch.finfo(v.dtype).eps / _ROUNDED
    if largest > 1.0:
        # Far from the centre, in lengthscales, near points are lost in the squares: one product for each input.
        parts = [((a[:, k, None] - b[None, :, k]).square_().to(v.dtype) * h) @ v for k in range(d)]
        return torch.stack(parts)
    # The slope of Matern-1/2 is 1 / (2 distance) for near points, and multiplies what rounding leaves of a difference
    # that is 0. Such pairs are formed from their differences.
    if h.numel() and largest * max(map(abs, map(float, torch.aminmax(h)))) > 1.0:
        steep = h.abs() * largest > 1.0
        i, j = torch.nonzero(steep, as_tuple=True)
        rest = squared_difference_products(a, b, h.masked_fill(steep, 0.0), v)
        for pairs in torch.split(torch.arange(i.numel(), device=i.device), max(1, _DIRECT_NUMBERS // (d * r))):
            row, column = i[pairs], j[pairs]
            near = (a[row] - b[column]).square_().mul_(h[row, column, None]).to(v.dtype)  # (pairs, d)
            rest.index_add_(1, row, near.T[:, :, None] * v[column])
        return rest
    a, b = a.to(v.dtype), b.to(v.dtype)
    # One product with 2 d + 1 columns instead of n^2 d elementwise work.
    powers = torch.cat([b.new_ones(n, 1), b, b.square()], dim=1)  # (n, 2 d + 1)
    products = (h @ (powers[:, :, None] * v[:, None, :]).reshape(n, -1)).reshape(-1, 2 * d + 1, r)
    plain, linear, square = products[:, :1], products[:, 1 : d + 1], products[:, d + 1 :]
    a = a[:, :, None]
    return (a.square() * plain - 2.0 * a * linear + square).movedim(1, 0)
