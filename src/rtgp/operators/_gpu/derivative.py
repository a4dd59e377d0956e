# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""sum_j dk/dD(D_ij) (z_ia - z_ja)^2 v_j for every input a, without K: dK/dlengthscale_a times v, up to a factor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp._kernels.formulas import RadialFormula, squared_distances
from rtgp.operators._gpu.launch import on_device, processors
from rtgp.operators._gpu.lists import column_of_tile, pointers, tiles_of_program
from rtgp.operators._gpu.points import INPUT_FACTOR, KIND, Pair, chunk_of
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


def derivative_reference(formula: RadialFormula, z: Tensor, v: Tensor) -> Tensor:
    """What the kernel computes, in float64 and with the full matrix: (d, n, r)."""
    slope, z, v = formula.slope(squared_distances(z, z)), z.double(), v.double()
    return torch.stack([(slope * (column[:, None] - column).square()) @ v for column in z.T])


@triton.jit(do_not_specialize=["column_blocks", "blocks_per_split"])
def _derivative_kernel(
    z,  # (2 d, n padded)
    norms,
    left,  # (n padded, WIDTH) float16
    right,
    unit_at,
    largest_at,
    vector,  # (n padded,)
    out,  # (splits, d, n padded) float64
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
    WIDTH: tl.constexpr,  # 0: distances from differences
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LISTED: tl.constexpr,
):
    row_block, start, stop = tiles_of_program(begins, turn, column_blocks, blocks_per_split, LISTED)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    a_index = tl.arange(0, PADDED_DIMENSIONS)
    if WIDTH > 0:
        first = row_halves(left, rows, WIDTH, CHUNK)
        unit = tl.load(unit_at)
        inexact = may_lose(largest_at, KIND)
    total = tl.zeros((BLOCK_M, PADDED_DIMENSIONS), tl.float64)
    for at in range(start, stop):
        cols = column_of_tile(listed, at, LISTED) * BLOCK_N + tl.arange(0, BLOCK_N)
        if WIDTH > 0:
            squared = expanded(first, left, right, rows, cols, unit, WIDTH, CHUNK)
            if inexact:
                squared = repaired(squared, norms, norms, z, z, rows, cols, padded, padded, KIND, DIMENSIONS, FAR)
        else:
            squared = differences(z, z, rows, cols, padded, padded, 0.0, DIMENSIONS, FAR, DIMENSIONS <= UNROLLED)
        _, slope = kernel_value_and_slope(squared, KIND)
        h = slope * tl.load(vector + cols)[None, :]  # zero where j is padding
        # Float32 within the tile, float64 from tile to tile.
        part = tl.zeros((BLOCK_M, PADDED_DIMENSIONS), tl.float32)
        for a in range(DIMENSIONS):
            along = difference(z, z, rows, cols, padded, padded, a, DIMENSIONS, FAR)
            along = tl.sum(h * along * along, axis=1)  # (BLOCK_M,)
            part += tl.where(a_index[None, :] == a, along[:, None], 0.0)
        total += part.to(tl.float64)
    at = (split * DIMENSIONS + a_index).to(tl.int64)[None, :] * padded + rows[:, None]
    tl.store(out + at, total, mask=(a_index < DIMENSIONS)[None, :] & (rows < padded)[:, None])


def derivative(pair: Pair, v: Tensor, tuning: Tuning | None = None) -> Tensor:
    """sum_j dk/dD(D_ij) (z_ia - z_ja)^2 v_j by the unscaled z, (n, r) float32 -> (d, n, r) float64; K square."""
    tuning = (tuning or Tuning()).fitted(pair.rows.width)
    points, (n, r), d = pair.rows, v.shape, pair.rows.dimensions
    result = torch.empty(d, n, r, dtype=torch.float64, device=v.device)
    with on_device(v):
        row_blocks, column_blocks = triton.cdiv(n, tuning.gradient_rows), triton.cdiv(n, tuning.gradient_columns)
        splits = split_count(row_blocks, column_blocks, processors(v.device), tuning.splits)
        per_split = triton.cdiv(column_blocks, splits)
        splits = triton.cdiv(column_blocks, per_split)
        out = torch.empty(splits, d, points.padded, dtype=torch.float64, device=v.device)
        tiles = pair.tiles.get((tuning.gradient_rows, tuning.gradient_columns))
        for k in range(r):
            vector = torch.nn.functional.pad(v[:, k], (0, points.padded - n))
            _derivative_kernel[(row_blocks, splits)](
                points.z, points.norms, points.left, points.right, pair.unit, pair.largest, vector, out,
                *pointers(tiles, out), points.padded, column_blocks, per_split,
                KIND=KIND[pair.kind], DIMENSIONS=d, FAR=pair.far, PADDED_DIMENSIONS=triton.next_power_of_2(d),
                WIDTH=points.width, CHUNK=chunk_of(points.width),
                BLOCK_M=tuning.gradient_rows, BLOCK_N=tuning.gradient_columns,
                LISTED=tiles is not None, num_warps=tuning.gradient_warps, num_stages=tuning.stages,
            )  # fmt: skip
            result[:, :, k] = out.sum(0)[:, :n]
    # The kernel's z is INPUT_FACTOR times the unscaled one.
    return result.mul_(INPUT_FACTOR[pair.kind] ** -2)
