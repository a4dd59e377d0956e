# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""One tile of squared distances, and the kernels as functions of them: shared by all fused operations.

Needs Triton; imported only by the operations. Names as in `points`: z is scaled so that RBF is 2^-D, and a Matern
kernel 2^-t times a polynomial, with D = |z_i - z_j|^2 and t its root.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LN2 = tl.constexpr(0.6931471805599453)
# Where expanded squares have lost too much. Their error, about 2^-23 (|a|^2 + |b|^2), may change K by 1e-5 at most:
# |a|^2 + |b|^2 <= 64 + 44 D is enough, for RBF since 2^D >= 1 + ln 2 D, for Matern 3/2 and 5/2 with room to spare.
# Matern 1/2 has an infinite slope at 0: |a|^2 + |b|^2 <= 128 t.
_LOST = tl.constexpr(64.0)
_PER_SQUARE = tl.constexpr(44.0)
_PER_DISTANCE = tl.constexpr(128.0)
UNROLLED = tl.constexpr(16)  # up to this many inputs a loop over them is written out


@triton.jit
def difference(row_z, col_z, rows, cols, row_stride, col_stride, a, DIMENSIONS: tl.constexpr, FAR: tl.constexpr):
    """z_ia - z_ja. z is (2 d, n), one input per line, and below them what float32 has cut off: far from the centre
    (FAR) that is more than the differences of near points can lose."""
    z_i = tl.load(row_z + a * row_stride + rows)
    z_j = tl.load(col_z + a * col_stride + cols)
    along = z_i[:, None] - z_j[None, :]
    if FAR:
        low_i = tl.load(row_z + (DIMENSIONS + a) * row_stride + rows)
        low_j = tl.load(col_z + (DIMENSIONS + a) * col_stride + cols)
        along += low_i[:, None] - low_j[None, :]
    return along


@triton.jit
def differences(
    row_z,
    col_z,
    rows,
    cols,
    row_stride,
    col_stride,
    START: tl.constexpr,
    DIMENSIONS: tl.constexpr,
    FAR: tl.constexpr,
    WRITTEN_OUT: tl.constexpr,
):
    """START + sum_a (z_ia - z_ja)^2 without cancellation."""
    squared = tl.full((rows.shape[0], cols.shape[0]), START, tl.float32)
    if WRITTEN_OUT:
        for a in tl.static_range(DIMENSIONS):
            along = difference(row_z, col_z, rows, cols, row_stride, col_stride, a, DIMENSIONS, FAR)
            squared += along * along
    else:
        for a in range(DIMENSIONS):
            along = difference(row_z, col_z, rows, cols, row_stride, col_stride, a, DIMENSIONS, FAR)
            squared += along * along
    return squared


@triton.jit
def row_halves(left, rows, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """The first chunk of the expanded rows, which a program keeps for all its columns."""
    inner = tl.arange(0, CHUNK)
    return tl.load(left + rows[:, None] * WIDTH + inner[None, :])  # (rows, chunk)


@triton.jit
def expanded(first, left, right, rows, cols, unit, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """|z_i|^2 + |z_j|^2 - 2 z_i . z_j as one product of float16 parts, norms included; may be slightly negative."""
    inner = tl.arange(0, CHUNK)
    product = tl.dot(first, tl.load(right + cols[None, :] * WIDTH + inner[:, None]))
    for start in tl.static_range(CHUNK, WIDTH, CHUNK):
        a = tl.load(left + rows[:, None] * WIDTH + (start + inner)[None, :])
        b = tl.load(right + cols[None, :] * WIDTH + (start + inner)[:, None])
        product = tl.dot(a, b, product)
    return product * unit


@triton.jit
def may_lose(largest_at, KIND: tl.constexpr):
    """Whether expanded squares can have lost too much: not among points that are all near the centre."""
    return tl.load(largest_at) > (0.0 if KIND == 1 else _LOST)


@triton.jit
def repaired(
    squared,
    row_norms,
    col_norms,
    row_z,
    col_z,
    rows,
    cols,
    row_stride,
    col_stride,
    KIND: tl.constexpr,
    DIMENSIONS: tl.constexpr,
    FAR: tl.constexpr,
):
    """The tile again from differences where a pair in it is so near that expanding has lost it."""
    norms = tl.load(row_norms + rows)[:, None] + tl.load(col_norms + cols)[None, :]
    if KIND == 1:
        lost = norms - _PER_DISTANCE * tl.sqrt(tl.maximum(squared, 0.0))
        worst = tl.max(lost)
    else:
        lost = norms - _PER_SQUARE * squared
        worst = tl.max(lost) - _LOST
    if worst > 0.0:
        squared = differences(row_z, col_z, rows, cols, row_stride, col_stride, 0.0, DIMENSIONS, FAR, False)
    return squared


@triton.jit
def kernel_value(squared, KIND: tl.constexpr, LIFT: tl.constexpr):
    """2^LIFT k(D). The lift costs nothing here and keeps small entries of K within float16's range."""
    if KIND == 0:
        value = tl.exp2(LIFT - squared)
    else:
        t = tl.sqrt(tl.maximum(squared, 0.0))
        value = tl.exp2(LIFT - t)
        s = t * _LN2
        if KIND == 3:
            value *= 1.0 + s
        if KIND == 5:
            value *= 1.0 + s + s * s * 0.3333333333333333
    return value


@triton.jit
def kernel_value_and_slope(squared, KIND: tl.constexpr):
    """k(D) and dk/dD, the latter by the unscaled squared distance of `formulas`."""
    if KIND == 0:
        value = tl.exp2(-squared)
        slope = -0.5 * value
    else:
        t = tl.sqrt(tl.maximum(squared, 0.0))
        power = tl.exp2(-t)
        s = t * _LN2
        if KIND == 1:
            value = power
            # No derivative at 0: equal points contribute nothing.
            slope = tl.where(s > 0.0, -0.5 * power / tl.where(s > 0.0, s, 1.0), 0.0)
        elif KIND == 3:
            value = power * (1.0 + s)
            slope = -1.5 * power
        else:
            value = power * (1.0 + s + s * s * 0.3333333333333333)
            slope = -0.8333333333333334 * power * (1.0 + s)
    return value, slope


@triton.jit
def kernel_tile(
    first,
    left,
    right,
    unit,
    inexact,
    row_norms,
    col_norms,
    row_z,
    col_z,
    rows,
    cols,
    row_stride,
    col_stride,
    KIND: tl.constexpr,
    DIMENSIONS: tl.constexpr,
    FAR: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    LIFT: tl.constexpr,
):
    """2^LIFT K[rows, cols]; `first`, `unit` and `inexact` are used where WIDTH > 0, distances then being expanded."""
    if WIDTH > 0:
        squared = expanded(first, left, right, rows, cols, unit, WIDTH, CHUNK)
        if inexact:
            squared = repaired(
                squared, row_norms, col_norms, row_z, col_z, rows, cols, row_stride, col_stride, KIND, DIMENSIONS, FAR
            )
        k = kernel_value(squared, KIND, LIFT)
    elif KIND == 0:
        # RBF: the sum of squares starts at the lift, an addition saved.
        k = tl.exp2(
            -differences(
                row_z, col_z, rows, cols, row_stride, col_stride, -LIFT, DIMENSIONS, FAR, DIMENSIONS <= UNROLLED
            )
        )
    else:
        squared = differences(
            row_z, col_z, rows, cols, row_stride, col_stride, 0.0, DIMENSIONS, FAR, DIMENSIONS <= UNROLLED
        )
        k = kernel_value(squared, KIND, LIFT)
    return k
