# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""Right-hand sides as the tensor cores read them: V = high + low in float16, each tile of rows in units of its own.

Two float16 hold 22 bits of a number; a float16 has few exponents, so that every column of a tile is divided by its
largest entry first. No sum over all rows is needed for that, and the products are multiplied back tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp.operators._gpu.launch import on_device
from rtgp.operators._gpu.points import LARGEST_COLUMN, TILE, padded_size, side_of


@dataclass(frozen=True)
class Columns:
    """V (n, r), transposed and padded with zeros."""

    high: Tensor  # (width, padded) float16
    low: Tensor
    sizes: Tensor  # (padded / TILE, width) float32: V = (high + low) sizes / unit

    @property
    def width(self) -> int:
        return self.high.shape[0]

    @property
    def padded(self) -> int:
        return self.high.shape[1]


@triton.jit(do_not_specialize=["n", "r"])
def _split_kernel(
    v,  # (n, r)
    noise_scale,  # (n,)
    high_at,
    low_at,
    sizes,
    out,  # (n, r)
    n,
    r,
    stride_n,
    stride_r,
    padded,
    unit,
    SCALED: tl.constexpr,
    CLEAR: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    LARGEST: tl.constexpr,
):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    cols = tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (cols < r)[None, :]
    x = tl.load(v + rows[:, None].to(tl.int64) * stride_n + cols[None, :] * stride_r, mask=inside, other=0.0)
    if SCALED:
        x *= tl.load(noise_scale + rows, mask=rows < n, other=0.0)[:, None]
    largest = tl.max(tl.abs(x), axis=0)
    largest = tl.where(largest > 0.0, largest, 1.0)
    x = x / largest[None, :] * LARGEST
    high = x.to(tl.float16)
    target = cols[None, :] * padded + rows[:, None]
    tl.store(high_at + target, high)
    tl.store(low_at + target, (x - high.to(tl.float32)).to(tl.float16))
    tl.store(sizes + tl.program_id(0) * COLUMNS + cols, largest * unit)
    if CLEAR:
        tl.store(out + rows[:, None] * r + cols[None, :], tl.zeros((TILE, COLUMNS), tl.float32), mask=inside)


def split_columns(v: Tensor, unit: float, noise_scale: Tensor | None = None, clear: Tensor | None = None) -> Columns:
    """V, or S V with S = diag(noise_scale), times `sizes` and `unit`, which undoes a factor of the other matrix.

    `clear` is a tensor of the shape of V that is filled with zeros on the way.
    """
    n, r = v.shape
    padded, width = padded_size(n), side_of(r)
    high, low = (torch.empty(width, padded, dtype=torch.float16, device=v.device) for _ in range(2))
    sizes = torch.empty(padded // TILE, width, dtype=torch.float32, device=v.device)
    with on_device(v):
        _split_kernel[(padded // TILE,)](
            v, v if noise_scale is None else noise_scale, high, low, sizes, v if clear is None else clear,
            n, r, v.stride(0), v.stride(1), padded, unit / LARGEST_COLUMN,
            SCALED=noise_scale is not None, CLEAR=clear is not None, COLUMNS=width, TILE=TILE, LARGEST=LARGEST_COLUMN,
            num_warps=4,
        )  # fmt: skip
    return Columns(high, low, sizes)
