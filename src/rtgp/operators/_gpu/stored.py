# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""A @ V for a stored matrix and few columns, near the bandwidth of the memory.

A matrix library is made for square products: with 12 columns it reaches a third of the bandwidth, and adds up all n
terms of a sum in float32 one after the other. Where they cancel, as in a solve, that is its largest error (n = 31,249,
two thirds of the rows twice: log|K + noise| off by 0.012 per point, and by 0.0001 with the sums of this kernel).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp.operators._gpu.columns import split_columns
from rtgp.operators._gpu.launch import on_device, processors
from rtgp.operators._gpu.points import MAXIMUM_COLUMNS, TILE, padded_size
from rtgp.operators._gpu.product import LIFT
from rtgp.operators._gpu.settings import split_count

_ROWS, _COLUMNS, _WARPS, _STAGES = 64, 64, 4, 4
_LARGE = 64  # rank from which the fused product with a tall, thin matrix pays


def stored_reference(matrix: Tensor, v: Tensor) -> Tensor:
    """What the kernel computes, in float64."""
    return matrix.double() @ v.double()


@triton.jit(do_not_specialize=["m", "n", "r", "column_blocks", "blocks_per_split"])
def _stored_kernel(
    matrix,  # (m, n) of row stride `stride`
    v_high,  # (COLUMNS, padded) float16: V = high + low
    v_low,
    sizes,  # (padded / TILE, COLUMNS): of each tile's columns, see columns.py
    out,  # (splits, m, r)
    m,
    n,
    r,
    stride,
    padded,
    column_blocks,
    blocks_per_split,
    lift,  # the largest entry of the matrix times this is 2^15
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    r_index = tl.arange(0, COLUMNS)
    base = matrix + rows[:, None].to(tl.int64) * stride
    total = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    start = split * blocks_per_split
    stop = tl.minimum(start + blocks_per_split, column_blocks)
    for block in range(start, stop):
        cols = block * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (rows < m)[:, None]
        if MASKED:  # numbers are then read one at a time
            inside = inside & (cols < n)[None, :]
        k = tl.load(base + cols[None, :], mask=inside, other=0.0) * lift
        # A = high + low and V = high + low; low low is below the last digit. Smallest first.
        k_high = k.to(tl.float16)
        k_low = (k - k_high.to(tl.float32)).to(tl.float16)
        v_at = r_index[None, :] * padded + cols[:, None]
        high = tl.load(v_high + v_at)
        part = tl.dot(k_low, high)
        part = tl.dot(k_high, tl.load(v_low + v_at), part)
        part = tl.dot(k_high, high, part)
        # Outside of the tensor cores, which round towards 0.
        total += part * tl.load(sizes + (block * BLOCK_N // TILE) * COLUMNS + r_index)[None, :]
    inside = (rows < m)[:, None] & (r_index < r)[None, :]
    tl.store(out + split.to(tl.int64) * m * r + rows[:, None].to(tl.int64) * r + r_index[None, :], total, mask=inside)


def stored_product(matrix: Tensor, v: Tensor, largest: float) -> Tensor:
    """matrix @ v, (m, n) @ (n, r), for a float32 matrix whose rows are contiguous and whose entries are at most
    `largest`. The matrix may have more columns than v has rows, of zeros: see `aligned`."""
    if v.shape[1] > MAXIMUM_COLUMNS:
        pieces = v.split(MAXIMUM_COLUMNS, dim=1)
        return torch.cat([stored_product(matrix, piece, largest) for piece in pieces], dim=1)
    (m, n), r = matrix.shape, v.shape[1]
    assert v.shape[0] <= n <= padded_size(v.shape[0])
    if m * n * r == 0:
        return v.new_zeros(m, r)
    columns = split_columns(v, largest * 2.0**-LIFT)
    row_blocks, column_blocks = triton.cdiv(m, _ROWS), triton.cdiv(n, _COLUMNS)
    splits = split_count(row_blocks, column_blocks, processors(v.device))
    per_split = triton.cdiv(column_blocks, splits)
    splits = triton.cdiv(column_blocks, per_split)
    out = torch.empty(splits, m, r, dtype=torch.float32, device=v.device)
    with on_device(v):
        _stored_kernel[(row_blocks, splits)](
            matrix, columns.high, columns.low, columns.sizes, out, m, n, r, matrix.stride(0), columns.padded,
            column_blocks, per_split, 2.0**LIFT / largest,
            COLUMNS=columns.width, BLOCK_M=_ROWS, BLOCK_N=_COLUMNS, TILE=TILE,
            MASKED=n % _COLUMNS != 0, num_warps=_WARPS, num_stages=_STAGES,
        )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0)


def aligned(matrix: Tensor) -> Tensor:
    """The same with columns of zeros up to a multiple of the kernel's block, so that rows are read in long words."""
    return torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % _COLUMNS)).contiguous()


def thin_product(matrix: Tensor, v: Tensor) -> Tensor:
    """matrix @ v for a matrix as `prepared`, whose columns or rows have a length of at most 1. Matrix libraries are
    made for square products: with 12 columns they do five times the work."""
    if _fused(matrix):
        return stored_product(matrix, v, 1.0)
    return matrix @ v


def prepared(matrix: Tensor) -> Tensor:
    """As `thin_product` takes it."""
    return aligned(matrix) if _fused(matrix) else matrix


def _fused(matrix: Tensor) -> bool:
    return matrix.dtype == torch.float32 and min(matrix.shape) >= _LARGE
