"""Pivoted Cholesky factorisations L of S K S: some columns of the matrix, made into a low-rank approximation of it.

Where there are several ranks, each holds its own rows of L. The n x k numbers are then as little copied as K is; what
is small (pivots, sums over rows) is the same on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rtgp.distributed import Group
from rtgp.errors import SettingError
from rtgp.solvers import WhitenedSystem

Rows = Callable[[Tensor], Tensor]  # index (k,) -> rows (k, n), float64; of many ranks, each its own columns (k, m)
_ALONE = Group.alone()


@dataclass(frozen=True)
class PivotedCholesky:
    """Settings of a low-rank preconditioner.

    rank: columns of L; None chooses sqrt(2 n r) for r right-hand sides, which costs about one product with K.
    pivoting: "greedy" takes the largest remaining diagonal entry, one at a time; "random" draws blocks of pivots in
    proportion to it (randomly pivoted Cholesky).
    """

    rank: int | None = None
    pivoting: Literal["greedy", "random"] = "random"

    def __post_init__(self) -> None:
        if self.rank is not None and (isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1):
            raise SettingError(
                "The 'rank' parameter of PivotedCholesky must be a positive integer or None. "
                f"Got {self.rank!r} instead."
            )
        if self.pivoting not in ("greedy", "random"):
            raise SettingError(
                "The 'pivoting' parameter of PivotedCholesky must be 'greedy' or 'random'. "
                f"Got {self.pivoting!r} instead."
            )

    def rank_for(self, n: int, right_hand_sides: int) -> int:
        wanted = math.isqrt(2 * n * right_hand_sides) if self.rank is None else self.rank
        return min(wanted, n)

    def factor(
        self,
        diagonal: Tensor,
        rows: Rows,
        right_hand_sides: int,
        generator: torch.Generator | None,
        rank: int | None = None,
        course: list[tuple[int, float]] | None = None,
        pivots: list[Tensor] | None = None,
        group: Group = _ALONE,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """L (n, k), or this rank's rows of it, float64 with L L^T close to the matrix of the given diagonal and rows.

        rank: in place of that of the settings. course: where (rank, what of the trace a column takes there) is noted
        for every block of pivots: about the eigenvalues of the matrix. pivots: where those are noted. dtype: in which
        the rows were computed; what is below its rounding is left out.
        """
        rank = self.rank_for(diagonal.shape[0], right_hand_sides) if rank is None else rank
        if self.pivoting == "greedy":
            return greedy_pivoted_cholesky(diagonal, rows, rank, pivots, group, dtype)
        return random_pivoted_cholesky(diagonal, rows, rank, generator, course, pivots, group, dtype)


# Below this part of the largest a remaining diagonal entry is rounding: of the rows, or of some hundred columns of L.
_ROUNDING = {torch.float32: 1e-7, torch.float64: 1e-13}


def _negligible(diagonal: Tensor, dtype: torch.dtype) -> float:
    return _ROUNDING[dtype] * float(diagonal.max())


def greedy_pivoted_cholesky(
    diagonal: Tensor,
    rows: Rows,
    rank: int,
    pivots: list[Tensor] | None = None,
    group: Group = _ALONE,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Column by column, the pivot being the largest entry of the remaining diagonal. A card is not waited for."""
    n, own = diagonal.shape[0], group.own(diagonal.shape[0])
    remaining = diagonal.clone()
    factor = diagonal.new_zeros(own.stop - own.start, rank)
    floor = _negligible(diagonal, dtype)
    drawn: list[Tensor] = []
    largest: list[Tensor] = []  # never rising: from the first that is negligible on all are
    for k in range(rank):
        drawn.append(remaining.argmax().reshape(1))
        largest.append(remaining[drawn[k]])
        row = rows(drawn[k])[0]
        column = row - factor[:, :k] @ group.take(factor[:, :k], drawn[k], n)[0]
        column = torch.where(largest[k] > floor, column * largest[k].clamp_min(1e-300).rsqrt(), 0.0)
        factor[:, k] = column
        remaining = group.gather_rows((remaining[own] - column.square()).clamp_min_(0.0), n)
        remaining[drawn[k]] = 0.0
    count = int((torch.cat(largest) > floor).sum())
    if pivots is not None:
        pivots += drawn[:count]
    return factor[:, :count]


def random_pivoted_cholesky(
    diagonal: Tensor,
    rows: Rows,
    rank: int,
    generator: torch.Generator | None,
    course: list[tuple[int, float]] | None = None,
    pivots: list[Tensor] | None = None,
    group: Group = _ALONE,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Blocks of pivots at once, drawn in proportion to the remaining diagonal (Chen, Epperly, Tropp and Webber)."""
    n, own = diagonal.shape[0], group.own(diagonal.shape[0])
    block_size = min(rank, max(16, rank // 10))
    remaining = diagonal.clone()
    factor = diagonal.new_zeros(own.stop - own.start, rank)
    floor = _negligible(diagonal, dtype)
    done = 0
    while done < rank:
        drawable = int((remaining > floor).sum())
        count = min(block_size, rank - done, drawable)
        if count == 0:
            break
        chances = torch.where(remaining > floor, remaining, 0.0).cpu()
        drawn = torch.multinomial(chances, count, replacement=False, generator=generator).to(diagonal.device)
        columns = rows(drawn).T - factor[:, :done] @ group.take(factor[:, :done], drawn, n).T  # (n, count)
        core = group.take(columns, drawn, n)
        new = _divided_by_root(columns, (core + core.T) / 2, floor)
        width = new.shape[1]
        if width == 0:
            break
        factor[:, done : done + width] = new
        remaining = group.gather_rows((remaining[own] - new.square().sum(1)).clamp_min_(0.0), n)
        remaining[drawn] = 0.0
        done += width
        if pivots is not None:
            pivots.append(drawn)
        if course is not None:
            course.append((done, float(group.sum(new.square().sum())) / width))
    return factor[:, :done]


def _divided_by_root(columns: Tensor, core: Tensor, floor: float) -> Tensor:
    """columns R^-T with R R^T = core (k, k), without the directions in which core is not well above rounding."""
    lower, info = torch.linalg.cholesky_ex(core)
    squares = lower.diagonal().square()
    if int(info) == 0 and bool(squares.min() > max(floor, 1e-8 * float(squares.max()))):
        solved: Tensor = torch.linalg.solve_triangular(lower, columns.T, upper=False)
        return solved.T
    # Pivots close to one another make the core nearly singular. Eigenvalues tell, but take far longer.
    eigenvalues, vectors = torch.linalg.eigh(core)
    keep = eigenvalues > max(floor, 1e-10 * float(eigenvalues[-1]))
    divided: Tensor = columns @ (vectors[:, keep] * eigenvalues[keep].rsqrt())
    return divided


def factor_of(
    system: WhitenedSystem,
    settings: PivotedCholesky,
    right_hand_sides: int,
    generator: torch.Generator,
    rank: int | None = None,
    course: list[tuple[int, float]] | None = None,
    pivots: list[Tensor] | None = None,
) -> Tensor:
    """L (n, k) with L L^T close to S K S, or this rank's rows of it, as far as the working precision has it: see
    `PivotedCholesky.factor`."""
    return settings.factor(
        system.kernel_diagonal(), system.own_kernel_rows, right_hand_sides, generator, rank, course, pivots,
        system.group, system.dtype,
    )  # fmt: skip
