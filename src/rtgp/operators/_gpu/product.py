# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""K(Z1, Z2) @ V without K: each program makes the tiles of one row block and multiplies them as they come."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp._kernels.formulas import RadialFormula, squared_distances
from rtgp.operators._gpu.launch import on_device, processors
from rtgp.operators._gpu.lists import column_of_tile, pointers, tiles_of_program
from rtgp.operators._gpu.points import KIND, LARGEST_COLUMN, MAXIMUM_COLUMNS, Pair, chunk_of, side_of
from rtgp.operators._gpu.radial import kernel_tile, may_lose, row_halves
from rtgp.operators._gpu.settings import Tuning, arithmetic_of, split_count

LIFT = 15.0  # K <= 2^15 in float16, whose largest number is just below 2^16


def product_reference(formula: RadialFormula, z_rows: Tensor, z_columns: Tensor, v: Tensor) -> Tensor:
    """What the kernel computes, in float64."""
    return formula.value(squared_distances(z_rows, z_columns)) @ v.double()


@triton.jit(do_not_specialize=["m", "r", "column_blocks", "blocks_per_split"])
def _product_kernel(
    row_z,  # (2 d, m padded)
    col_z,  # (2 d, n padded)
    row_norms,
    col_norms,
    left,  # (m padded, WIDTH) float16
    right,  # (n padded, WIDTH) float16
    unit_at,
    largest_at,
    v_high,  # (COLUMNS, n padded): V, or the larger part of it
    v_low,  # the smaller part, where V is in two
    sizes,  # (COLUMNS,): what the columns of V were divided by
    out,  # (splits, m, r)
    begins,
    turn,
    listed,
    m,
    r,
    row_stride,
    col_stride,
    column_blocks,
    blocks_per_split,
    one,  # 1.0
    KIND: tl.constexpr,
    DIMENSIONS: tl.constexpr,
    FAR: tl.constexpr,
    WIDTH: tl.constexpr,  # 0: distances from differences
    CHUNK: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LIFT: tl.constexpr,
    WIDE: tl.constexpr,  # sums from block to block, and the result, in float64
    LISTED: tl.constexpr,
):
    row_block, start, stop = tiles_of_program(begins, turn, column_blocks, blocks_per_split, LISTED)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    r_index = tl.arange(0, COLUMNS)
    if WIDTH > 0:
        first = row_halves(left, rows, WIDTH, CHUNK)
        unit = tl.load(unit_at)
        inexact = may_lose(largest_at, KIND)
    else:
        first, unit, inexact = 0.0, 1.0, False
    total = tl.zeros((BLOCK_M, COLUMNS), tl.float64 if WIDE else tl.float32)
    for at in range(start, stop):
        cols = column_of_tile(listed, at, LISTED) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = kernel_tile(
            first, left, right, unit, inexact, row_norms, col_norms, row_z, col_z, rows, cols, row_stride, col_stride,
            KIND, DIMENSIONS, FAR, WIDTH, CHUNK, LIFT,
        )  # fmt: skip  # (BLOCK_M, BLOCK_N), 2^LIFT K_ij
        v_at = r_index[None, :] * col_stride + cols[:, None]
        if ARITHMETIC == "float16x3":
            # K = high + low and V = high + low; low low is below the last digit. Smallest first.
            k_high = k.to(tl.float16)
            k_low = (k - k_high.to(tl.float32)).to(tl.float16)
            high = tl.load(v_high + v_at)
            part = tl.dot(k_low, high)
            part = tl.dot(k_high, tl.load(v_low + v_at), part)
            part = tl.dot(k_high, high, part)
        else:
            part = tl.dot(k, tl.load(v_high + v_at), input_precision=ARITHMETIC)
        # Tensor cores round their sums towards 0: over 10^5 columns of one sign that is an error of 1e-3. Blocks are
        # added outside of them; times one, which the compiler does not know to be 1, or it would fold the two.
        total += part * one
    total *= tl.load(sizes + r_index)[None, :]
    inside = (rows < m)[:, None] & (r_index < r)[None, :]
    tl.store(out + split.to(tl.int64) * m * r + rows[:, None].to(tl.int64) * r + r_index[None, :], total, mask=inside)


@triton.jit(do_not_specialize=["n", "r"])
def _split_kernel(
    v, sizes, high_at, low_at, scales_at, n, r, stride_n, stride_r, padded,
    size, lift, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """V (n, r) -> its columns divided by their largest entry, as high + low in float16, transposed and padded."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.arange(0, COLUMNS)
    largest = tl.load(sizes + cols, mask=cols < r, other=0.0)
    largest = tl.where(largest > 0.0, largest, 1.0)
    at = rows[:, None].to(tl.int64) * stride_n + cols[None, :] * stride_r
    x = tl.load(v + at, mask=(rows < n)[:, None] & (cols < r)[None, :], other=0.0)
    x = x / largest[None, :] * size
    high = x.to(tl.float16)
    target = cols[None, :] * padded + rows[:, None]
    tl.store(high_at + target, high)
    tl.store(low_at + target, (x - high.to(tl.float32)).to(tl.float16))
    if tl.program_id(0) == 0:
        tl.store(scales_at + cols, largest / size * lift)


def product(
    pair: Pair, v: Tensor, precision: str = "float32", tuning: Tuning | None = None, wide: bool = False
) -> Tensor:
    """K v, (n, r) float32 -> (m, r) float32, or float64 where sums are to be `wide`; any number of columns."""
    if v.shape[1] > MAXIMUM_COLUMNS:
        pieces = v.split(MAXIMUM_COLUMNS, dim=1)
        return torch.cat([product(pair, piece, precision, tuning, wide) for piece in pieces], dim=1)
    m, (n, r) = pair.rows.count, v.shape
    dtype = torch.float64 if wide else torch.float32
    if r == 0:
        return v.new_zeros(m, 0, dtype=dtype)
    rows, cols = pair.rows, pair.columns
    tuning = (tuning or Tuning()).fitted(rows.width)
    arithmetic = arithmetic_of(precision, tuning)
    with on_device(v):
        high, low, sizes = padded_columns(v, cols.padded, arithmetic)
        row_blocks, column_blocks = triton.cdiv(m, tuning.block_rows), triton.cdiv(n, tuning.block_columns)
        splits = split_count(row_blocks, column_blocks, processors(v.device), tuning.splits)
        per_split = triton.cdiv(column_blocks, splits)
        splits = triton.cdiv(column_blocks, per_split)
        out = torch.empty(splits, m, r, dtype=dtype, device=v.device)
        tiles = pair.tiles.get((tuning.block_rows, tuning.block_columns))
        _product_kernel[(row_blocks, splits)](
            rows.z, cols.z, rows.norms, cols.norms, rows.left, cols.right, pair.unit, pair.largest,
            high, low, sizes, out, *pointers(tiles, sizes),
            m, r, rows.padded, cols.padded, column_blocks, per_split, 1.0,
            KIND=KIND[pair.kind], DIMENSIONS=rows.dimensions, FAR=pair.far,
            WIDTH=rows.width, CHUNK=chunk_of(rows.width),
            ARITHMETIC=arithmetic, COLUMNS=high.shape[0], BLOCK_M=tuning.block_rows, BLOCK_N=tuning.block_columns,
            LIFT=LIFT if arithmetic == "float16x3" else 0.0, WIDE=wide, LISTED=tiles is not None,
            num_warps=tuning.warps, num_stages=tuning.stages,
        )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0)


def padded_columns(v: Tensor, padded: int, arithmetic: str) -> tuple[Tensor, Tensor, Tensor]:
    """V^T (COLUMNS, padded) in the numbers the product is made of, and the columns' sizes (COLUMNS,)."""
    n, r = v.shape
    width = side_of(r)
    if arithmetic != "float16x3":
        transposed = torch.nn.functional.pad(v.T, (0, padded - n, 0, width - r)).contiguous()
        return transposed, transposed, torch.ones(width, dtype=torch.float32, device=v.device)
    largest = torch.linalg.vector_norm(v, float("inf"), dim=0)  # (r,)
    high, low = (torch.empty(width, padded, dtype=torch.float16, device=v.device) for _ in range(2))
    sizes = torch.empty(width, dtype=torch.float32, device=v.device)
    block = 64
    _split_kernel[(padded // block,)](
        v, largest, high, low, sizes, n, r, v.stride(0), v.stride(1), padded, LARGEST_COLUMN, 2.0**-LIFT,
        COLUMNS=width, BLOCK=block,
    )  # fmt: skip
    return high, low, sizes
