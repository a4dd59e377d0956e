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
    slope_from_value: Callable[[Tensor], Tensor] | None = None  # k(D) -> dk/dD where that needs no D


# exp of less than this is not worth its time: denormal numbers make it, and every product with it, many times slower.
_SMALLEST_EXPONENT = {torch.float32: -60.0, torch.float64: -600.0}


def _exp(exponent: Tensor) -> Tensor:
    """exp in place, for exponents that are never positive."""
    return exponent.clamp_min_(_SMALLEST_EXPONENT[exponent.dtype]).exp_()


def _rbf_value(squared: Tensor) -> Tensor:
    return _exp(squared.mul_(-0.5))


def _rbf_slope(squared: Tensor) -> Tensor:
    return _rbf_value(squared).mul_(-0.5)


def _matern12_value(squared: Tensor) -> Tensor:
    return _exp(squared.sqrt_().neg_())


def _matern12_slope(squared: Tensor) -> Tensor:
    distance = squared.sqrt_()
    slope = _exp(-distance).div_(distance).mul_(-0.5)
    # k is not differentiable at 0; the symmetric choice, 0, is what a pair of equal points contributes.
    return slope.masked_fill_(distance == 0, 0.0)


def _matern32_value(squared: Tensor) -> Tensor:
    scaled = squared.sqrt_().mul_(_SQRT3)
    return _exp(-scaled).mul_(scaled.add_(1.0))


def _matern32_slope(squared: Tensor) -> Tensor:
    return _exp(squared.sqrt_().mul_(-_SQRT3)).mul_(-1.5)


def _matern52_value(squared: Tensor) -> Tensor:
    scaled = squared.sqrt_().mul_(_SQRT5)
    return _exp(-scaled).mul_(scaled.square().div_(3.0).add_(scaled).add_(1.0))


def _matern52_slope(squared: Tensor) -> Tensor:
    scaled = squared.sqrt_().mul_(_SQRT5)
    return _exp(-scaled).mul_(scaled.add_(1.0)).mul_(-5.0 / 6.0)


RBF = RadialFormula("rbf", _rbf_value, _rbf_slope, slope_from_value=lambda value: value * -0.5)
MATERN12 = RadialFormula("matern12", _matern12_value, _matern12_slope)
MATERN32 = RadialFormula("matern32", _matern32_value, _matern32_slope)
MATERN52 = RadialFormula("matern52", _matern52_value, _matern52_slope)

MATERN = {0.5: MATERN12, 1.5: MATERN32, 2.5: MATERN52}

# Up to this many inputs the differences are formed one by one: exact, and cheaper than a product.
_DIRECT_DIMENSIONS = 4
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
    norm_a = a.square().sum(1, keepdim=True)  # (m, 1)
    norm_b = b.square().sum(1, keepdim=True)  # (k, 1)
    left = torch.cat([a.mul(-2.0), norm_a, torch.ones_like(norm_a)], dim=1)  # (m, d + 2)
    right = torch.cat([b, torch.ones_like(norm_b), norm_b], dim=1)  # (k, d + 2)
    result = left @ right.T
    if result.numel() == 0:
        return result
    i, j = torch.nonzero(result < _CANCELLED * float(norm_a.max() + norm_b.max()), as_tuple=True)
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
