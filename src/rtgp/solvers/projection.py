# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"
"""The last part of a preconditioner's solve on a card, in one kernel. Needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rtgp.operators.triton.launch import on_device
from rtgp.operators.triton.stored import aligned, stored_product
from rtgp.solvers.recurrence import ROWS, programs_for

_LARGE = 64  # rank from which the fused product pays


@triton.jit(do_not_specialize=["n", "k", "r", "per_program", "k_per_program"])
def _finish_kernel(
    outside,  # (n, r): r - Q Q^T r, up to rounding
    joint,  # (n, 2 r): Q [what is left of Q in it | C^-T C^-1 Q^T r]
    damped,  # (k, r) float64: C^-1 Q^T r
    solved,
    parts,  # (programs, COLUMNS) float64
    n,
    k,
    r,
    per_program,
    k_per_program,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    cols = tl.arange(0, COLUMNS)
    real = (cols < r)[None, :]
    total = tl.zeros((COLUMNS,), tl.float64)
    first = tl.program_id(0) * per_program
    for block in range(first, first + per_program):
        rows = block * ROWS + tl.arange(0, ROWS)
        inside = (rows < n)[:, None] & real
        twice = rows[:, None] * (2 * r) + cols[None, :]
        part = tl.load(outside + rows[:, None] * r + cols[None, :], mask=inside, other=0.0)
        part -= tl.load(joint + twice, mask=inside, other=0.0)
        total += tl.sum(part.to(tl.float64) * part.to(tl.float64), axis=0)
        part += tl.load(joint + twice + r, mask=inside, other=0.0)
        tl.store(solved + rows[:, None] * r + cols[None, :], part, mask=inside)
    first = tl.program_id(0) * k_per_program
    for block in range(first, first + k_per_program):
        rows = block * ROWS + tl.arange(0, ROWS)
        part = tl.load(damped + rows[:, None] * r + cols[None, :], mask=(rows < k)[:, None] & real, other=0.0)
        total += tl.sum(part * part, axis=0)
    tl.store(parts + tl.program_id(0) * COLUMNS + cols, total)


def solve(q: Tensor, q_transposed: Tensor, inverse: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """P^-1 r and r^T P^-1 r as in `LowRankPlusIdentity.solve`, the plain reference; Q and Q^T as `prepared`."""
    (n, count), k = r.shape, inverse.shape[0]
    r = r.contiguous()
    inside = _product(q_transposed, r)  # (k, count)
    outside = r - _product(q, inside)
    damped = inverse @ inside.double()
    joint = _product(q, torch.cat([_product(q_transposed, outside), (inverse.T @ damped).to(r.dtype)], dim=1))
    solved = torch.empty_like(r)
    programs, per_program = programs_for(n, r.device)
    columns = max(2, triton.next_power_of_2(count))
    parts = torch.empty(programs, columns, dtype=torch.float64, device=r.device)
    with on_device(r):
        _finish_kernel[(programs,)](
            outside, joint, damped, solved, parts, n, k, count, per_program,
            triton.cdiv(triton.cdiv(k, ROWS), programs), COLUMNS=columns, ROWS=ROWS, num_warps=4,
        )  # fmt: skip
    return solved, parts[:, :count].sum(0)


def _product(matrix: Tensor, v: Tensor) -> Tensor:
    """matrix @ v. Matrix libraries are made for square products: with 12 columns they do five times the work."""
    if _fused(matrix):
        return stored_product(matrix, v, 1.0)  # the columns of Q have length 1
    return matrix @ v


def _fused(matrix: Tensor) -> bool:
    return matrix.dtype == torch.float32 and min(matrix.shape) >= _LARGE


def prepared(matrix: Tensor) -> Tensor:
    """Q or Q^T as `solve` takes it."""
    return aligned(matrix) if _fused(matrix) else matrix
