"""Equispaced frequencies with weights: the trapezoidal rule for Bochner's integral, in one and two dimensions.

On a grid of spacing h the sum is exact but for two errors: what lies beyond the grid, and the images of the kernel at
distances of 2 pi / h, which must lie outside the data. Both fall faster than any power of the number of frequencies for
the RBF kernel; random frequencies err like its inverse root.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rtgp._kernels.spectral import DEGREES, Component, Spectrum
from rtgp._kernels.stationary import Stationary
from rtgp.errors import UnsupportedModelError

DIMENSIONS = 2  # at most: the grid grows like a power of them
_MARGINS = [1.02**k for k in range(250)]  # between the data and their images, in lengthscales


def grid_spectrum(components: tuple[Component, ...], count: int) -> Spectrum:
    """`count` frequencies in all, shared out evenly among the components."""
    terms = len(components)
    grids = [frequency_grid(one, len(range(t, count, terms))) for t, one in enumerate(components)]
    return Spectrum(components, tuple(omega for omega, _ in grids), tuple(weights for _, weights in grids))


def frequency_grid(component: Component, count: int) -> tuple[Tensor, Tensor]:
    """Frequencies (d, count) by rising length and weights (count,): k(tau) = sum_i weight_i cos(omega_i^T tau).

    One of each pair +-omega is taken. The first is zero: its sine is a column of zeros.
    """
    z = component.z.detach()
    if z.shape[1] > DIMENSIONS:
        raise UnsupportedModelError(
            f"A grid of frequencies is for kernels of one or two inputs. Got {z.shape[1]}: use frequencies='random', "
            "or method='rr-cg'."
        )
    extent = (z.amax(0) - z.amin(0)).tolist()
    margin = min(_MARGINS, key=lambda m: _error(component, extent, m, count))
    spacing = [2.0 * math.pi / (length + margin) for length in extent]
    reach = _reach(spacing, count) * 1.2 + max(spacing)  # some more than are kept, so that the kept ones fill a disc
    first = torch.arange(0, math.ceil(reach / spacing[0]) + 1, dtype=torch.float64) * spacing[0]
    points = first[:, None]
    if len(spacing) == 2:
        most = math.ceil(reach / spacing[1])
        second = torch.arange(-most, most + 1, dtype=torch.float64) * spacing[1]
        points = torch.cartesian_prod(first, second)
        points = points[(points[:, 0] > 0) | (points[:, 1] >= 0)]
    order = torch.argsort(points.square().sum(1), stable=True)[:count]
    omega = points[order].T.contiguous()  # (d, count)
    weights = 2.0 * math.prod(spacing) * _density(component, omega)
    weights[0] *= 0.5
    return omega.to(z.device), weights.to(z.device)


def _reach(spacing: list[float], count: int) -> float:
    """The radius within which half of the grid has `count` points."""
    volume = 2.0 if len(spacing) == 1 else math.pi
    return float((2.0 * count * math.prod(spacing) / volume) ** (1.0 / len(spacing)))


def _error(component: Component, extent: list[float], margin: float, count: int) -> float:
    """About the error of an entry of K: the nearest images, and the mass beyond the grid."""
    spacing = [2.0 * math.pi / (length + margin) for length in extent]
    reach = _reach(spacing, count)
    squared = torch.tensor([margin**2], dtype=torch.float64)
    images = max(float(leaf.formula.value(squared.clone())) for leaf in component.leaves)
    return 2.0 * len(spacing) * images + sum(_mass_beyond(leaf, reach) for leaf in component.leaves)


def _mass_beyond(leaf: Stationary, reach: float) -> float:
    """P(|omega| > reach)."""
    degrees = DEGREES[leaf.formula.name]
    if leaf.z.shape[1] == 2:
        return math.exp(-0.5 * reach**2) if degrees is None else (1.0 + reach**2 / degrees) ** (-0.5 * degrees)
    if degrees is None:
        return math.erfc(reach / math.sqrt(2.0))
    from scipy.special import stdtr  # the distribution function of Student's t

    return 2.0 * float(stdtr(degrees, -reach))


def _density(component: Component, omega: Tensor) -> Tensor:
    """The spectral density at omega (d, count), (count,)."""
    density, start = torch.ones(omega.shape[1], dtype=torch.float64), 0
    for leaf in component.leaves:
        d, degrees = leaf.z.shape[1], DEGREES[leaf.formula.name]
        squared = omega[start : start + d].square().sum(0)
        start += d
        if degrees is None:
            density *= (2.0 * math.pi) ** (-0.5 * d) * torch.exp(-0.5 * squared)
        else:
            constant = math.exp(math.lgamma(0.5 * (degrees + d)) - math.lgamma(0.5 * degrees))
            constant /= (degrees * math.pi) ** (0.5 * d)
            density *= constant * (1.0 + squared / degrees) ** (-0.5 * (degrees + d))
    return density
