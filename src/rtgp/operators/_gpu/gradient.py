# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""sum_ij W_ij K_ij and its gradient with respect to z, for W = sum_r (u_r v_r^T + v_r u_r^T) / 2, without K or W.

    d/dz_i sum_jk W_jk k(D_jk) = 4 sum_j H_ij (z_i - z_j),   H_ij = W_ij dk/dD(D_ij):

each ordered pair gives 2 H_ij (z_i - z_j), and i is the first of a pair as often as it is the second.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp._kernels.formulas import RadialFormula, squared_distances
from rtgp.operators._gpu.launch import on_device, processors
from rtgp.operators._gpu.lists import column_of_tile, pointers, tiles_of_program
from rtgp.operators._gpu.points import INPUT_FACTOR, KIND, Pair, chunk_of, side_of
from rtgp.operators._gpu.radial import (
    UNROLLED,
    difference,
    differences,
    expanded,
    kernel_value_and_slope,
    may_lose,
    repaired,
    row_halves,
)
from rtgp.operators._gpu.settings import Tuning, split_count

MAXIMUM_COLUMNS = 32  # of u and v per launch; more are taken in turns
_DIRECT = 8  # up to this many inputs z_i - z_j is formed pair by pair; beyond, where float32 is too short for z


def gradient_reference(formula: RadialFormula, z: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What the kernel computes, in float64 and with the full matrix: (value, (n, d))."""
    u, v, squared = u.double(), v.double(), squared_distances(z, z)
    weight = (u @ v.T + v @ u.T) / 2
    h = weight * formula.slope(squared.clone())
    gradient = 4.0 * (h[:, :, None] * (z[:, None, :] - z[None, :, :])).sum(1)
    return (weight * formula.value(squared)).sum(), gradient


@triton.jit(do_not_specialize=["column_blocks", "blocks_per_split"])
def _gradient_kernel(
    z,  # (2 d, n padded)
    norms,
    left,  # (n padded, WIDTH) float16
    right,
    unit_at,
    largest_at,
    first_vectors,  # (n padded, COLUMNS): W = first second^T
    second_vectors,
    values,  # (splits, row blocks) float64
    gradients,  # (splits, n padded, d) float64
    begins,
    turn,
    listed,
    padded,
    column_blocks,
    blocks_per_split,
    KIND: tl.constexpr,
    DIMENSIONS: tl.constexpr,
    FAR: tl.constexpr,
    PADDED_DIMENSIONS: tl.constexpr,
    DIRECT: tl.constexpr,
    WIDTH: tl.constexpr,  # 0: distances from differences
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LISTED: tl.constexpr,
):
    row_block, start, stop = tiles_of_program(begins, turn, column_blocks, blocks_per_split, LISTED)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    r_index = tl.arange(0, COLUMNS)
    a_index = tl.arange(0, PADDED_DIMENSIONS)
    w_rows = tl.load(first_vectors + rows[:, None] * COLUMNS + r_index[None, :])
    z_rows = tl.load(z + a_index[None, :] * padded + rows[:, None], mask=(a_index < DIMENSIONS)[None, :], other=0.0)
    if WIDTH > 0:
        first = row_halves(left, rows, WIDTH, CHUNK)
        unit = tl.load(unit_at)
        inexact = may_lose(largest_at, KIND)
    value = tl.zeros((BLOCK_M,), tl.float64)
    gradient = tl.zeros((BLOCK_M, PADDED_DIMENSIONS), tl.float64)
    for at in range(start, stop):
        cols = column_of_tile(listed, at, LISTED) * BLOCK_N + tl.arange(0, BLOCK_N)
        if WIDTH > 0:
            squared = expanded(first, left, right, rows, cols, unit, WIDTH, CHUNK)
            if inexact:
                squared = repaired(squared, norms, norms, z, z, rows, cols, padded, padded, KIND, DIMENSIONS, FAR)
        else:
            squared = differences(z, z, rows, cols, padded, padded, 0.0, DIMENSIONS, FAR, DIMENSIONS <= UNROLLED)
        k, slope = kernel_value_and_slope(squared, KIND)
        w_cols = tl.load(second_vectors + cols[None, :] * COLUMNS + r_index[:, None])
        w = tl.dot(w_rows, w_cols, input_precision=PRECISION)  # W_ij, zero where i or j is padding
        value += tl.sum(w * k, axis=1).to(tl.float64)
        h = w * slope
        # Float32 within the tile, float64 from tile to tile.
        if DIRECT:
            part = tl.zeros((BLOCK_M, PADDED_DIMENSIONS), tl.float32)
            for a in tl.static_range(DIMENSIONS):
                along = difference(z, z, rows, cols, padded, padded, a, DIMENSIONS, FAR)
                along = tl.sum(h * along, axis=1)  # (BLOCK_M,)
                part += tl.where(a_index[None, :] == a, along[:, None], 0.0)
        elif FAR:
            part = tl.zeros((BLOCK_M, PADDED_DIMENSIONS), tl.float32)
            for a in range(DIMENSIONS):
                along = difference(z, z, rows, cols, padded, padded, a, DIMENSIONS, FAR)
                along = tl.sum(h * along, axis=1)
                part += tl.where(a_index[None, :] == a, along[:, None], 0.0)
        else:
            # The same rounded H in both terms: what is lost is 2^-22 |z| / |z_i - z_j| of the terms.
            z_cols = tl.load(
                z + a_index[None, :] * padded + cols[:, None], mask=(a_index < DIMENSIONS)[None, :], other=0.0
            )
            part = tl.sum(h, axis=1)[:, None] * z_rows - tl.dot(h, z_cols, input_precision=PRECISION)
        gradient += part.to(tl.float64)
    tl.store(values + split * tl.num_programs(0) + row_block, tl.sum(value))
    at = (split.to(tl.int64) * padded + rows.to(tl.int64))[:, None] * DIMENSIONS + a_index[None, :]
    tl.store(gradients + at, gradient, mask=(a_index < DIMENSIONS)[None, :] & (rows < padded)[:, None])


def gradient(pair: Pair, u: Tensor, v: Tensor, tuning: Tuning | None = None) -> tuple[Tensor, Tensor]:
    """sum_r u_r^T K v_r (float64 scalar) and its gradient by the unscaled z, (n, d) float64; K square."""
    tuning = (tuning or Tuning()).fitted(pair.rows.width)
    if u.shape[1] > MAXIMUM_COLUMNS:
        pieces = zip(u.split(MAXIMUM_COLUMNS, dim=1), v.split(MAXIMUM_COLUMNS, dim=1), strict=True)
        parts = [gradient(pair, a, b, tuning) for a, b in pieces]
        return torch.stack([part[0] for part in parts]).sum(), torch.stack([part[1] for part in parts]).sum(0)
    points, n, d = pair.rows, pair.rows.count, pair.rows.dimensions
    if u.shape[1] == 0:
        zeros = torch.zeros(n, d, dtype=torch.float64, device=u.device)
        return zeros.sum(), zeros
    same = u is v
    first = _padded(u if same else torch.cat([u, v], dim=1) * 0.5, points.padded)
    second = first if same else _padded(torch.cat([v, u], dim=1), points.padded)
    with on_device(u):
        row_blocks, column_blocks = triton.cdiv(n, tuning.gradient_rows), triton.cdiv(n, tuning.gradient_columns)
        splits = split_count(row_blocks, column_blocks, processors(u.device), tuning.splits)
        per_split = triton.cdiv(column_blocks, splits)
        splits = triton.cdiv(column_blocks, per_split)
        values = torch.empty(splits, row_blocks, dtype=torch.float64, device=u.device)
        gradients = torch.empty(splits, points.padded, d, dtype=torch.float64, device=u.device)
        tiles = pair.tiles.get((tuning.gradient_rows, tuning.gradient_columns))
        _gradient_kernel[(row_blocks, splits)](
            points.z, points.norms, points.left, points.right, pair.unit, pair.largest, first, second,
            values, gradients, *pointers(tiles, values), points.padded, column_blocks, per_split,
            KIND=KIND[pair.kind], DIMENSIONS=d, FAR=pair.far,
            PADDED_DIMENSIONS=triton.next_power_of_2(d) if d <= _DIRECT else side_of(d),
            DIRECT=d <= _DIRECT, WIDTH=points.width, CHUNK=chunk_of(points.width), PRECISION="tf32x3",
            COLUMNS=first.shape[1], BLOCK_M=tuning.gradient_rows, BLOCK_N=tuning.gradient_columns,
            LISTED=tiles is not None, num_warps=tuning.gradient_warps, num_stages=tuning.stages,
        )  # fmt: skip
    # The kernel's z is INPUT_FACTOR times the unscaled one, its slope is by the unscaled squared distance.
    return values.sum(), gradients[:, :n].sum(0).mul_(4.0 / INPUT_FACTOR[pair.kind])


def _padded(w: Tensor, rows: int) -> Tensor:
    """w (n, r) with zero rows and columns up to (rows, a power of two)."""
    width = side_of(w.shape[1])
    return torch.nn.functional.pad(w, (0, width - w.shape[1], 0, rows - w.shape[0])).contiguous()
