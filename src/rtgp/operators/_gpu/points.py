"""Inputs as the fused kernels read them: scaled, padded, in float32 and in float16 parts. Plain torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rtgp._kernels.formulas import MATERN, RBF
from rtgp.operators._order import TileList

PAD = 256  # rows are padded to a multiple of the largest block: no masks in the inner loops
TILE = 128  # of a stored half of K; divides PAD
CHUNK = 64  # inputs of the expanded product are read this many at a time
MAXIMUM_COLUMNS = 64  # of V per launch; more are taken in turns
LARGEST_COLUMN = 2.0**14  # the largest entry of a column of V in float16
_LEAST_SIDE = 16  # of a tile that the tensor cores multiply

# z is multiplied by this, so that the exponent of a kernel is a power of two of a distance without a further product:
# RBF is 2^-|z_i - z_j|^2; Matern has t = |z_i - z_j|, 2^-t times a polynomial in t ln 2.
_LOG2E = math.log2(math.e)
INPUT_FACTOR = {RBF.name: math.sqrt(_LOG2E / 2)} | {
    formula.name: math.sqrt(2.0 * nu) * _LOG2E for nu, formula in MATERN.items()
}
KIND = {RBF.name: 0} | {formula.name: round(2.0 * nu) for nu, formula in MATERN.items()}

# At this distance from the centre a coordinate in float32 is off by 4e-6, and so may be a kernel value.
_FAR = 64.0
_LARGEST_HALF = 14  # scaled squared norms stay below 2^14: float16 ends at 2^16
# The smallest number of float16 is then 2^-24 / scale^2 in |z|^2: 2e-7 at this distance, and growing with its square. A
# point further away would spoil the distances of all the others.
_TOO_FAR = 256.0


@dataclass(frozen=True)
class Points:
    """One set of points. `left` and `right` hold what makes |a - b|^2 one product, and are empty where distances come
    from differences."""

    count: int
    z: Tensor  # (2 d, padded) float32, scaled; the last d lines are what the first d have cut off
    norms: Tensor  # (padded,) float32, |z|^2
    left: Tensor  # (padded, width) float16, as the first factor
    right: Tensor  # (padded, width) float16, as the second factor

    @property
    def dimensions(self) -> int:
        return self.z.shape[0] // 2

    @property
    def padded(self) -> int:
        return self.z.shape[1]

    @property
    def width(self) -> int:
        return self.left.shape[1]


@dataclass(frozen=True)
class Pair:
    """Rows and columns of K (the same object for a square K) in common units.

    Attributes
    ----------
    tiles : Mapping[tuple[int, int], TileList]
        By (rows, columns) of a tile, those that are not zero; without an entry all are visited.
    """

    kind: str
    rows: Points
    columns: Points
    unit: Tensor  # (1,) float32: left . right times this is |a - b|^2
    largest: Tensor  # (1,) float32: the largest |a|^2 + |b|^2
    far: bool  # whether float32 is too short for the coordinates
    tiles: Mapping[tuple[int, int], TileList] = field(default_factory=dict)


def prepare(kind: str, z_rows: Tensor, z_columns: Tensor | None, direct: int) -> Pair:
    """z (m, d) and z (n, d), or None for a square K; centred float64. Up to `direct` inputs, and for
    points too far apart, no expanded squares."""
    sets = [z * INPUT_FACTOR[kind] for z in ([z_rows] if z_columns is None else [z_rows, z_columns])]
    norms = [z.square().sum(1) for z in sets]
    largest = torch.stack([norm.max() for norm in norms]).max()
    # A power of two that brings the largest squared norm just below 2^14, float16's range being what it is.
    exponent = torch.floor((_LARGEST_HALF - torch.log2(largest.clamp_min(1e-30))) / 2)
    scale = torch.exp2(exponent)
    reach = float(largest)
    expanded = z_rows.shape[1] > direct and reach <= _TOO_FAR**2
    points = [_points(z, norm, scale, expanded) for z, norm in zip(sets, norms, strict=True)]
    unit, twice = scale.pow(-2).float().reshape(1), (2.0 * largest).float().reshape(1)
    return Pair(kind, points[0], points[-1], unit, twice, reach > _FAR**2)


def _points(z: Tensor, norms: Tensor, scale: Tensor, expanded: bool) -> Points:
    n, d = z.shape
    extra = padded_size(n) - n
    single = z.float()
    low = (z - single.double()).float()
    transposed = torch.nn.functional.pad(torch.cat([single, low], dim=1).T, (0, extra)).contiguous()
    padded_norms = torch.nn.functional.pad(norms.float(), (0, extra))
    if not expanded:
        nothing = torch.empty(0, 0, dtype=torch.float16, device=z.device)
        return Points(n, transposed, padded_norms, nothing, nothing)
    # z = high + low; a . b ~ high high + low high + high low, as one product of three times the length. The squared
    # norm is that of the same three terms, so that equal points have distance 0, in three parts of 11 bits each.
    z = z * scale
    high = z.half()
    low = (z - high.double()).half()
    rest = (high.double().square() + 2.0 * high.double() * low.double()).sum(1, keepdim=True)
    parts = []
    for _ in range(3):
        parts.append(rest.half())
        rest = rest - parts[-1].double()
    ones = torch.ones(n, 3, dtype=torch.float16, device=z.device)
    left = torch.cat([-2.0 * high, -2.0 * low, -2.0 * high, *parts, ones], dim=1)  # (n, 3 d + 6)
    right = torch.cat([high, high, low, ones, *parts], dim=1)
    short = padded_width(d) - left.shape[1]
    return Points(
        n, transposed, padded_norms, *(torch.nn.functional.pad(t, (0, short, 0, extra)) for t in (left, right))
    )


def half_bytes(n: int) -> int:
    """Memory of one half of an n x n matrix in tiles, two float16 for each number."""
    blocks = -(-n // TILE)
    return blocks * (blocks + 1) // 2 * TILE * TILE * 4


def padded_size(n: int) -> int:
    return -(-n // PAD) * PAD


def expanded_length(d: int) -> int:
    """Of a point of d inputs as a factor of the expanded product."""
    return 3 * d + 6


def padded_width(d: int) -> int:
    """`expanded_length` as a power of two up to one chunk, as whole chunks beyond."""
    length = expanded_length(d)
    return side_of(length) if length <= CHUNK else -(-length // CHUNK) * CHUNK


def side_of(length: int) -> int:
    """The side of a tile that holds `length` numbers: a power of two that the tensor cores take."""
    return max(_LEAST_SIDE, 1 << (length - 1).bit_length())


def chunk_of(width: int) -> int:
    """How many of `width` inputs of the expanded product are read at a time."""
    return max(min(CHUNK, width), _LEAST_SIDE)
