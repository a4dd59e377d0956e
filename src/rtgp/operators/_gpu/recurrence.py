# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""The updates of conjugate gradients in three Triton kernels, where torch takes thirty.

Needs Triton; imported only on a card or, in tests, in its interpreter. Their plain reference is `Iteration._step`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp.operators._gpu.launch import on_device, processors

ROWS = 64  # of a block; `programs_for` counts in them
_WARPS = 4


@triton.jit(do_not_specialize=["n", "r", "per_program"])
def _curvature_kernel(
    direction, product, parts, n, r, per_program, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """parts (programs, COLUMNS): d^T (A d) over the rows of each program, in float64."""
    cols = tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float64)
    first = tl.program_id(0) * per_program
    for block in range(first, first + per_program):
        rows = block * ROWS + tl.arange(0, ROWS)
        at = rows[:, None] * r + cols[None, :]
        inside = (rows < n)[:, None] & (cols < r)[None, :]
        d = tl.load(direction + at, mask=inside, other=0.0).to(tl.float64)
        p = tl.load(product + at, mask=inside, other=0.0).to(tl.float64)
        total += tl.sum(d * p, axis=0)
    tl.store(parts + tl.program_id(0) * COLUMNS + cols, total)


@triton.jit(do_not_specialize=["n", "r", "per_program", "programs"])
def _descend_kernel(
    residual,  # (n, r), whitened, updated
    whitened,  # (n, r): F^-1 A d
    parts,  # (programs, COLUMNS)
    squares,  # (r,) float64: |rho|^2
    active,  # (r,) float64: 1 or 0
    gamma_at,  # (r,) float64
    positive_at,  # () float64
    n,
    r,
    per_program,
    programs,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """rho <- rho - gamma F^-1 A d."""
    cols = tl.arange(0, COLUMNS)
    real = cols < r
    # Every program adds up all parts for itself: a few kilobytes, instead of one more kernel.
    curvature = tl.zeros((COLUMNS,), tl.float64)
    for start in range(0, programs, PARTS):
        index = start + tl.arange(0, PARTS)
        part = tl.load(
            parts + index[:, None] * COLUMNS + cols[None, :],
            mask=(index < programs)[:, None] & real[None, :],
            other=0.0,
        )
        curvature += tl.sum(part, axis=0)
    square = tl.load(squares + cols, mask=real, other=0.0)
    working = tl.load(active + cols, mask=real, other=0.0) > 0.0
    moves = working & (curvature > 0.0)
    gamma = tl.where(moves, square / tl.where(moves, curvature, 1.0), 0.0)
    if tl.program_id(0) == 0:
        tl.store(gamma_at + cols, gamma, mask=real)
        tl.store(positive_at, tl.min(tl.where(working & (moves == 0), 0.0, 1.0)).to(tl.float64))
    step = gamma.to(residual.dtype.element_ty)
    first = tl.program_id(0) * per_program
    for block in range(first, first + per_program):
        rows = block * ROWS + tl.arange(0, ROWS)
        at = rows[:, None] * r + cols[None, :]
        inside = (rows < n)[:, None] & real[None, :]
        left = tl.load(residual + at, mask=inside, other=0.0)
        left -= step[None, :] * tl.load(whitened + at, mask=inside, other=0.0)
        tl.store(residual + at, left, mask=inside)


@triton.jit(do_not_specialize=["n", "r", "per_program"])
def _turn_kernel(
    direction,  # (n, r)
    conditioned,  # (n, r): F^-T rho = P^-1 r
    new_direction,  # (n, r)
    squares,  # (r,) float64, before the iteration
    found,  # (r,) float64, after it
    scale,  # (r,) float64: what the squares are measured against
    floor,  # (r,) float64: the squares of a column at the working precision
    active,  # (r,) float64, before
    group_of,  # (r,) int32
    group_size,  # (GROUPS,) float64
    beta_at,
    squares_at,
    active_at,
    proxy_at,  # () float64: error proxy
    n,
    r,
    per_program,
    GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """d <- P^-1 r + beta d; zero for columns that have reached the working precision."""
    cols = tl.arange(0, COLUMNS)
    real = cols < r
    before = tl.load(squares + cols, mask=real, other=1.0)
    after = tl.load(found + cols, mask=real, other=0.0)
    size = tl.load(scale + cols, mask=real, other=1.0)
    working = tl.load(active + cols, mask=real, other=0.0) > 0.0
    after = tl.where(working, after, before)
    still = working & (after > tl.load(floor + cols, mask=real, other=0.0))
    beta = tl.where(still, after / tl.where(still, before, 1.0), 0.0)
    if tl.program_id(0) == 0:
        tl.store(beta_at + cols, beta, mask=real)
        tl.store(squares_at + cols, after, mask=real)
        tl.store(active_at + cols, still.to(tl.float64), mask=real)
        group = tl.load(group_of + cols, mask=real, other=-1)
        worst = tl.sum(tl.zeros((2,), tl.float64))
        for g in tl.static_range(GROUPS):
            mean = tl.sum(tl.where(group == g, after / size, 0.0)) / tl.load(group_size + g)
            worst = tl.maximum(worst, mean, propagate_nan=tl.PropagateNan.ALL)
        tl.store(proxy_at, tl.sqrt(worst))
    turn, keep = beta.to(direction.dtype.element_ty), still.to(direction.dtype.element_ty)
    first = tl.program_id(0) * per_program
    for block in range(first, first + per_program):
        rows = block * ROWS + tl.arange(0, ROWS)
        at = rows[:, None] * r + cols[None, :]
        inside = (rows < n)[:, None] & real[None, :]
        d = tl.load(direction + at, mask=inside, other=0.0) * turn[None, :]
        d = (d + tl.load(conditioned + at, mask=inside, other=0.0)) * keep[None, :]
        tl.store(new_direction + at, d, mask=inside)


class Recurrence:
    """The three kernels for right-hand sides of one shape."""

    def __init__(self, like: Tensor, scale: Tensor, floor: Tensor, groups: Sequence[slice]) -> None:
        self.n, self.r = like.shape
        self._scale, self._floor, self._groups = scale, floor, len(groups)
        self._programs, self._per_program = programs_for(self.n, like.device)
        self._columns = max(2, triton.next_power_of_2(self.r))
        self._parts = torch.empty(self._programs, self._columns, dtype=torch.float64, device=like.device)
        group_of = torch.full((self.r,), -1, dtype=torch.int32)
        for number, group in enumerate(groups):
            group_of[group] = number
        sizes = [float(len(range(*group.indices(self.r)))) for group in groups]
        self._group_of = group_of.to(like.device)
        self._group_size = torch.tensor(sizes, dtype=torch.float64).to(like.device)

    def descend(
        self, direction: Tensor, product: Tensor, whitened: Tensor, residual: Tensor, squares: Tensor, active: Tensor,
        gamma: Tensor, positive: Tensor,
    ) -> None:  # fmt: skip
        """gamma = |rho|^2 / d^T A d and rho <- rho - gamma F^-1 A d, product being A d and whitened F^-1 A d; positive:
        whether all active columns had d^T A d > 0."""
        shape = {"COLUMNS": self._columns, "ROWS": ROWS, "num_warps": _WARPS}
        with on_device(direction):
            _curvature_kernel[(self._programs,)](
                direction, product, self._parts, self.n, self.r, self._per_program, **shape
            )
            _descend_kernel[(self._programs,)](
                residual, whitened, self._parts, squares, active, gamma, positive, self.n, self.r, self._per_program,
                self._programs, PARTS=64, **shape,
            )  # fmt: skip

    def turn(
        self, direction: Tensor, conditioned: Tensor, new_direction: Tensor, squares: Tensor, found: Tensor,
        active: Tensor, beta: Tensor, new_squares: Tensor, new_active: Tensor, proxy: Tensor,
    ) -> None:  # fmt: skip
        """beta, d <- P^-1 r + beta d, and who goes on."""
        with on_device(direction):
            _turn_kernel[(self._programs,)](
                direction, conditioned, new_direction, squares, found, self._scale, self._floor, active,
                self._group_of, self._group_size, beta, new_squares, new_active, proxy, self.n, self.r,
                self._per_program, GROUPS=self._groups, COLUMNS=self._columns, ROWS=ROWS, num_warps=_WARPS,
            )  # fmt: skip


def programs_for(n: int, device: torch.device) -> tuple[int, int]:
    """How many programs share n rows, and how many blocks of rows each takes."""
    blocks = triton.cdiv(n, ROWS)
    per_program = triton.cdiv(blocks, 2 * processors(device))
    return triton.cdiv(blocks, per_program), per_program
