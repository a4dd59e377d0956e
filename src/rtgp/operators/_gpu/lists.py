# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""Which tiles a program visits: a run of all columns, or a run of a list. Shared by the fused operations."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from rtgp.operators._order import TileList


@triton.jit
def tiles_of_program(begins, turn, column_blocks, blocks_per_split, LISTED: tl.constexpr):
    """The row of tiles of a program, and where its run of columns begins and ends: in the list, where there is one."""
    row = tl.program_id(0)
    split = tl.program_id(1)
    if LISTED:
        row = tl.load(turn + row)
        first = tl.load(begins + row)
        last = tl.load(begins + row + 1)
        each = tl.cdiv(last - first, tl.num_programs(1))
        start = first + split * each
        stop = tl.minimum(start + each, last)
    else:
        start = split * blocks_per_split
        stop = tl.minimum(start + blocks_per_split, column_blocks)
    return row, start, stop


@triton.jit
def column_of_tile(listed, at, LISTED: tl.constexpr):
    """The column of tiles at one place of a run."""
    block = at
    if LISTED:
        block = tl.load(listed + at)
    return block


def pointers(tiles: TileList | None, unused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """begins, turn and columns for a launch; any tensor where there is no list."""
    return (unused, unused, unused) if tiles is None else (tiles.begins, tiles.turn, tiles.columns)
