# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""K @ V for a stored K of which one half is kept, every number read once and used twice, near the memory's bandwidth.

K = U + U^T with U upper triangular and half of K's diagonal on its own. Of U only the tiles on and above the diagonal
are stored, each number as the sum of two float16: what the tensor cores take without a further word. A product then
reads 2 n^2 bytes, half of what K in float32 has. Rows of the mirror image are added in an order that is not fixed: two
runs differ in the last digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp.operators._gpu.columns import split_columns
from rtgp.operators._gpu.launch import on_device, processors
from rtgp.operators._gpu.points import KIND, MAXIMUM_COLUMNS, TILE, Pair, chunk_of
from rtgp.operators._gpu.product import LIFT
from rtgp.operators._gpu.radial import kernel_tile, may_lose, row_halves

_STRIP = 64  # columns of a tile that are made at once
# Up to this many inputs K is made from differences, exact to the last digits: what is stored once serves many products,
# and expanded squares would be off by up to 1e-5, which a small noise feels.
_EXACT = 64
_WARPS, _STAGES = 8, 2
_PROGRAMS = 8  # for each multiprocessor, about


@dataclass(frozen=True)
class HalfMatrix:
    """2^LIFT U. Tile (i, j), j >= i, is number i (2 m - i + 1) / 2 + j - i of m (m + 1) / 2."""

    size: int
    high: Tensor  # (tiles, TILE, TILE) float16
    low: Tensor

    @property
    def blocks(self) -> int:
        return -(-self.size // TILE)


@triton.jit(do_not_specialize=["blocks"])
def _store_kernel(
    z,  # (2 d, n padded)
    norms,
    left,  # (n padded, WIDTH) float16
    right,
    unit_at,
    largest_at,
    high_at,
    low_at,
    padded,
    blocks,
    KIND: tl.constexpr,
    DIMENSIONS: tl.constexpr,
    FAR: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    STRIP: tl.constexpr,
    LIFT: tl.constexpr,
):
    i, strip = tl.program_id(0), tl.program_id(1)
    j = strip // (TILE // STRIP)
    if j >= i:
        rows, cols = i * TILE + tl.arange(0, TILE), strip * STRIP + tl.arange(0, STRIP)
        if WIDTH > 0:
            first = row_halves(left, rows, WIDTH, CHUNK)
            unit = tl.load(unit_at)
            inexact = may_lose(largest_at, KIND)
        else:
            first, unit, inexact = 0.0, 1.0, False
        k = kernel_tile(
            first, left, right, unit, inexact, norms, norms, z, z, rows, cols, padded, padded,
            KIND, DIMENSIONS, FAR, WIDTH, CHUNK, 0,
        )  # fmt: skip
        k *= 2.0**LIFT  # afterwards: within the exponent it would cost digits
        k = tl.where(rows[:, None] < cols[None, :], k, tl.where(rows[:, None] == cols[None, :], 0.5 * k, 0.0))
        high = k.to(tl.float16)
        number = (i * blocks - i * (i - 1) // 2 + j - i).to(tl.int64) * (TILE * TILE)
        at = number + (rows - i * TILE)[:, None] * TILE + (cols - j * TILE)[None, :]
        tl.store(high_at + at, high)
        tl.store(low_at + at, (k - high.to(tl.float32)).to(tl.float16))


@triton.jit(do_not_specialize=["n", "r"])
def _finish_kernel(out, v, noise_scale, n, r, stride_n, stride_r, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """out <- S out + V."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (cols < r)[None, :]
    at = rows[:, None] * r + cols[None, :]
    x = tl.load(out + at, mask=inside, other=0.0) * tl.load(noise_scale + rows, mask=rows < n, other=0.0)[:, None]
    x += tl.load(v + rows[:, None].to(tl.int64) * stride_n + cols[None, :] * stride_r, mask=inside, other=0.0)
    tl.store(out + at, x, mask=inside)


@triton.jit(do_not_specialize=["n", "r", "blocks", "per_program"])
def _half_kernel(
    high_at,
    low_at,
    v_high,  # (COLUMNS, n padded) float16: V = high + low, in units of `sizes`
    v_low,
    sizes,  # (blocks, COLUMNS): of each tile's columns, see columns.py
    out,  # (n, r), zero
    n,
    r,
    padded,
    blocks,
    per_program,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    i = tl.program_id(0)
    start = i + tl.program_id(1) * per_program
    stop = tl.minimum(start + per_program, blocks)
    if start < blocks:
        within = tl.arange(0, TILE)
        r_index = tl.arange(0, COLUMNS)
        rows = i * TILE + within
        row_size = tl.load(sizes + i * COLUMNS + r_index)[None, :]
        rows_at = r_index[None, :] * padded + rows[:, None]
        row_high = tl.load(v_high + rows_at)  # (TILE, COLUMNS)
        row_low = tl.load(v_low + rows_at)
        inner = within[:, None] * TILE + within[None, :]
        first = (i * blocks - i * (i - 1) // 2 - i).to(tl.int64)
        total = tl.zeros((TILE, COLUMNS), tl.float32)
        for j in range(start, stop):
            at = (first + j) * (TILE * TILE)
            k_high = tl.load(high_at + at + inner)
            k_low = tl.load(low_at + at + inner)
            cols = j * TILE + within
            cols_at = r_index[None, :] * padded + cols[:, None]
            high = tl.load(v_high + cols_at)
            # low low is below the last digit. Smallest first; tiles are added up outside of the tensor cores, which
            # round towards 0.
            part = tl.dot(k_low, high)
            part = tl.dot(k_high, tl.load(v_low + cols_at), part)
            part = tl.dot(k_high, high, part)
            total += part * tl.load(sizes + j * COLUMNS + r_index)[None, :]
            mirror = tl.dot(tl.trans(k_low), row_high)
            mirror = tl.dot(tl.trans(k_high), row_low, mirror)
            mirror = tl.dot(tl.trans(k_high), row_high, mirror)
            inside = (cols < n)[:, None] & (r_index < r)[None, :]
            tl.atomic_add(out + cols[:, None] * r + r_index[None, :], mirror * row_size, mask=inside, sem="relaxed")
        inside = (rows < n)[:, None] & (r_index < r)[None, :]
        tl.atomic_add(out + rows[:, None] * r + r_index[None, :], total, mask=inside, sem="relaxed")


def store(pair: Pair, into: HalfMatrix | None = None) -> HalfMatrix:
    """K of a square pair, in the memory of another of the same size where that is given."""
    points = pair.rows
    width = 0 if points.dimensions <= _EXACT else points.width
    blocks = triton.cdiv(points.count, TILE)
    shape = (blocks * (blocks + 1) // 2, TILE, TILE)
    if into is None:
        high, low = (torch.empty(shape, dtype=torch.float16, device=points.z.device) for _ in range(2))
    else:
        high, low = into.high, into.low
    with on_device(points.z):
        _store_kernel[(blocks, blocks * (TILE // _STRIP))](
            points.z, points.norms, points.left, points.right, pair.unit, pair.largest, high, low,
            points.padded, blocks,
            KIND=KIND[pair.kind], DIMENSIONS=points.dimensions, FAR=pair.far,
            WIDTH=width, CHUNK=chunk_of(width), TILE=TILE, STRIP=_STRIP, LIFT=LIFT,
            num_warps=8, num_stages=1,
        )  # fmt: skip
    return HalfMatrix(points.count, high, low)


def half_product(matrix: HalfMatrix, v: Tensor, scale: float = 1.0, noise_scale: Tensor | None = None) -> Tensor:
    """scale K v, or scale S K S v + v with S = diag(noise_scale); (n, r) float32 -> (n, r) float32.
    Its plain reference is `product_reference`."""
    if v.shape[1] > MAXIMUM_COLUMNS:
        pieces = v.split(MAXIMUM_COLUMNS, dim=1)
        return torch.cat([half_product(matrix, piece, scale, noise_scale) for piece in pieces], dim=1)
    (n, r), blocks = v.shape, matrix.blocks
    out = torch.empty(n, r, dtype=torch.float32, device=v.device)
    if r == 0:
        return out
    columns = split_columns(v, scale * 2.0**-LIFT, noise_scale, clear=out)
    tiles = blocks * (blocks + 1) // 2
    per_program = max(1, min(blocks, tiles // (_PROGRAMS * processors(v.device))))
    with on_device(v):
        _half_kernel[(blocks, triton.cdiv(blocks, per_program))](
            matrix.high, matrix.low, columns.high, columns.low, columns.sizes, out, n, r, columns.padded, blocks,
            per_program,
            COLUMNS=columns.width, TILE=TILE, num_warps=_WARPS, num_stages=_STAGES if columns.width <= 32 else 1,
        )  # fmt: skip
        if noise_scale is not None:
            _finish_kernel[(triton.cdiv(n, _STRIP),)](
                out, v, noise_scale, n, r, v.stride(0), v.stride(1), COLUMNS=columns.width, ROWS=_STRIP
            )
    return out
