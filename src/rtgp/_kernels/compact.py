"""Kernels of compact support: 0 from one lengthscale on, polynomials of the distance below."""

from __future__ import annotations

import functools
from fractions import Fraction

import torch
from gpytorch.kernels import PiecewisePolynomialKernel
from torch import Tensor

from rtgp._kernels.formulas import RadialFormula


@functools.cache
def piecewise_polynomial(smoothness: int, dimensions: int, quadratic: float | None = None) -> RadialFormula:
    """Wendland's kernel, q = smoothness in 0, ..., 3, which is positive definite in so many dimensions:
    k = (1 - r)^(j + q) P(r) for r < 1, with j = floor(d / 2) + q + 1 (Rasmussen and Williams, Eq. 4.21).

    quadratic: the coefficient of r^2 in P, where it is another than theirs."""
    power = dimensions // 2 + 2 * smoothness + 1  # j + q
    inner = _inner(smoothness, power - smoothness)
    if quadratic is not None:
        inner = (*inner[:2], quadratic, *inner[3:])
    # dk/dr = (1 - r)^(power - 1) ((1 - r) P' - power P), and dk/dD = dk/dr / (2 r).
    steep = _steep(inner, power)

    def value(squared: Tensor) -> Tensor:
        distance = squared.sqrt_()
        return _power(distance, power).mul_(_polynomial(distance, inner))

    def slope(squared: Tensor) -> Tensor:
        distance = squared.sqrt_()
        result = _power(distance, power - 1)
        if smoothness == 0:
            # k is not differentiable at 0; the symmetric choice, 0, is what a pair of equal points contributes.
            return result.mul_(-0.5 * power).div_(distance).masked_fill_(distance == 0, 0.0)
        return result.mul_(_polynomial(distance, steep[1:])).mul_(0.5)  # steep[0] is 0: one r of it is divided by

    def both(squared: Tensor) -> tuple[Tensor, Tensor]:
        return value(squared.clone()), slope(squared)

    return RadialFormula(f"piecewise{smoothness}", value, slope, both, support=1.0)


@functools.cache
def of_gpytorch(smoothness: int, dimensions: int) -> RadialFormula:
    """The one that the installed GPyTorch computes: some versions have (5 j + 3) / 3 for (j^2 + 4 j + 3) / 3 at q = 2.
    A model keeps the kernel that it was written with."""
    ours = piecewise_polynomial(smoothness, dimensions)
    if smoothness != 2:
        return ours
    kernel = PiecewisePolynomialKernel(q=2).double()
    kernel.lengthscale = 1.0
    x = torch.zeros(2, dimensions, dtype=torch.float64)
    x[1, 0] = _PROBE
    with torch.no_grad():
        theirs = float(kernel(x[:1], x[1:]).to_dense())
    power = dimensions // 2 + 2 * smoothness + 1
    j = power - smoothness
    whole = theirs / (1.0 - _PROBE) ** power
    quadratic = (whole - 1.0 - (j + 2) * _PROBE) / _PROBE**2
    # One of the two, to the last digit.
    if abs(quadratic - (j * j + 4 * j + 3) / 3) < abs(quadratic - (5 * j + 3) / 3):
        return ours
    return piecewise_polynomial(smoothness, dimensions, (5 * j + 3) / 3)


_PROBE = 0.5  # a distance at which they differ


def _inner(q: int, j: int) -> tuple[float, ...]:
    """The coefficients of P, lowest first."""
    whole = (Fraction(1),)
    found = {
        0: whole,
        1: (*whole, Fraction(j + 1)),
        2: (*whole, Fraction(j + 2), Fraction(j * j + 4 * j + 3, 3)),
        3: (
            *whole,
            Fraction(j + 3),
            Fraction(6 * j * j + 36 * j + 45, 15),
            Fraction(j**3 + 9 * j * j + 23 * j + 15, 15),
        ),
    }
    return tuple(map(float, found[q]))


def _steep(inner: tuple[float, ...], power: int) -> tuple[float, ...]:
    """(1 - r) P' - power P."""
    derivative = [k * c for k, c in enumerate(inner)][1:]
    result = [-power * c for c in inner]
    for k, c in enumerate(derivative):
        result[k] += c
        result[k + 1] -= c
    return tuple(result)


def _power(distance: Tensor, power: int) -> Tensor:
    rest = (1.0 - distance).clamp_min_(0.0)
    return rest.pow_(power) if power > 0 else (rest > 0).to(rest)


def _polynomial(distance: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    result = torch.full_like(distance, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result.mul_(distance).add_(c)
    return result
