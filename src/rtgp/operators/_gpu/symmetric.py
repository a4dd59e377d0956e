# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""K(Z, Z) @ V with every tile above the diagonal made once and used twice, as K_ij V_j and as K_ij^T V_i.

Half the exponentials of `product`. The second use adds to rows of other programs, in an order that is not fixed: two
runs differ in the last digits. Its plain reference is `product_reference` with both sets of points the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp.operators._gpu.launch import on_device
from rtgp.operators._gpu.points import KIND, MAXIMUM_COLUMNS, Pair, chunk_of
from rtgp.operators._gpu.product import LIFT, padded_columns
from rtgp.operators._gpu.radial import kernel_tile, may_lose, row_halves
from rtgp.operators._gpu.settings import Tuning

_RUN = 64  # blocks of columns per program, where the tuning does not say


@triton.jit(do_not_specialize=["n", "r", "column_blocks", "blocks_per_split"])
def _symmetric_kernel(
    z,  # (2 d, n padded)
    norms,
    left,  # (n padded, WIDTH) float16
    right,
    unit_at,
    largest_at,
    v_high,  # (COLUMNS, n padded) float16: V = high + low
    v_low,
    sizes,  # (COLUMNS,): what the columns of V were divided by
    out,  # (n, r), zero
    n,
    r,
    padded,
    column_blocks,
    blocks_per_split,
    one,  # 1.0
    KIND: tl.constexpr,
    DIMENSIONS: tl.constexpr,
    FAR: tl.constexpr,
    WIDTH: tl.constexpr,  # 0: distances from differences
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # divides BLOCK_M
    LIFT: tl.constexpr,
    PINNED: tl.constexpr,  # not in the interpreter, which has no assembler
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    r_index = tl.arange(0, COLUMNS)
    # From the diagonal to the right, in runs of blocks_per_split; the square on the diagonal is made in full.
    diagonal = tl.program_id(0) * (BLOCK_M // BLOCK_N)
    start = diagonal + tl.program_id(1) * blocks_per_split
    stop = tl.minimum(start + blocks_per_split, column_blocks)
    if start < column_blocks:
        if WIDTH > 0:
            first = row_halves(left, rows, WIDTH, CHUNK)
            unit = tl.load(unit_at)
            inexact = may_lose(largest_at, KIND)
        else:
            first, unit, inexact = 0.0, 1.0, False
        size = tl.load(sizes + r_index)[None, :]
        rows_at = r_index[None, :] * padded + rows[:, None]
        row_high = tl.load(v_high + rows_at)  # (BLOCK_M, COLUMNS)
        row_low = tl.load(v_low + rows_at)
        total = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
        for block in range(start, stop):
            cols = block * BLOCK_N + tl.arange(0, BLOCK_N)
            k = kernel_tile(
                first, left, right, unit, inexact, norms, norms, z, z, rows, cols, padded, padded,
                KIND, DIMENSIONS, FAR, WIDTH, CHUNK, LIFT,
            )  # fmt: skip
            k_high = k.to(tl.float16)
            k_low = (k - k_high.to(tl.float32)).to(tl.float16)
            if PINNED:
                # The compiler would rather compute K again, in the layout of K^T, than move it: not with an operation
                # in between that it may not repeat. It costs nothing.
                k_high = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [k_high], tl.float16, False, 2)
                k_low = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [k_low], tl.float16, False, 2)
            cols_at = r_index[None, :] * padded + cols[:, None]
            high = tl.load(v_high + cols_at)  # (BLOCK_N, COLUMNS)
            part = tl.dot(k_low, high)
            part = tl.dot(k_high, tl.load(v_low + cols_at), part)
            part = tl.dot(k_high, high, part)
            total += part * one  # see product.py
            if block >= diagonal + BLOCK_M // BLOCK_N:
                mirror = tl.dot(tl.trans(k_low), row_high)  # (BLOCK_N, COLUMNS)
                mirror = tl.dot(tl.trans(k_high), row_low, mirror)
                mirror = tl.dot(tl.trans(k_high), row_high, mirror)
                inside = (cols < n)[:, None] & (r_index < r)[None, :]
                tl.atomic_add(out + cols[:, None] * r + r_index[None, :], mirror * size, mask=inside, sem="relaxed")
        inside = (rows < n)[:, None] & (r_index < r)[None, :]
        tl.atomic_add(out + rows[:, None] * r + r_index[None, :], total * size, mask=inside, sem="relaxed")


def symmetric_product(pair: Pair, v: Tensor, tuning: Tuning | None = None) -> Tensor:
    """K v for a square K, (n, r) float32 -> (n, r) float32, always in split float16."""
    if v.shape[1] > MAXIMUM_COLUMNS:
        return torch.cat([symmetric_product(pair, part, tuning) for part in v.split(MAXIMUM_COLUMNS, dim=1)], dim=1)
    points, (n, r) = pair.rows, v.shape
    tuning = (tuning or Tuning()).fitted(points.width)
    out = v.new_zeros(n, r)
    if r == 0:
        return out
    block_columns = min(tuning.block_rows, tuning.block_columns)
    row_blocks, column_blocks = triton.cdiv(n, tuning.block_rows), triton.cdiv(n, block_columns)
    # Runs of one length, so that short rows near the end of the triangle do not leave processors idle.
    splits = min(tuning.splits or max(1, column_blocks // _RUN), column_blocks)
    per_split = triton.cdiv(column_blocks, splits)
    with on_device(v):
        high, low, sizes = padded_columns(v, points.padded, "float16x3")
        _symmetric_kernel[(row_blocks, triton.cdiv(column_blocks, per_split))](
            points.z, points.norms, points.left, points.right, pair.unit, pair.largest, high, low, sizes,
            out, n, r, points.padded, column_blocks, per_split, 1.0,
            KIND=KIND[pair.kind], DIMENSIONS=points.dimensions, FAR=pair.far,
            WIDTH=points.width, CHUNK=chunk_of(points.width), COLUMNS=high.shape[0],
            BLOCK_M=tuning.block_rows, BLOCK_N=block_columns, LIFT=LIFT, PINNED=v.is_cuda,
            num_warps=tuning.warps, num_stages=tuning.stages,
        )  # fmt: skip
    return out
