"""Pivoted Cholesky factorisations L of S K S: some columns of the matrix, made into a low-rank approximation of it.

Where there are several ranks, each holds its own rows of L. The n x k numbers are then as little copied as K is; what
is small (pivots, sums over rows) is the same on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rtgp._solvers import NoiseUnits
from rtgp.distributed import Group
from rtgp.errors import SettingError

Rows = Callable[[Tensor], Tensor]  # index (k,) -> rows (k, n), float64; of many ranks, each its own columns (k, m)
_ALONE = Group.alone()


@dataclass(frozen=True)
class PivotedCholesky:
    """Settings of a low-rank preconditioner, a partial Cholesky factorisation with pivots.

    Parameters
    ----------
    rank : int, optional
        Columns of the factor. By default sqrt(2 n r) for r right-hand sides, which costs about one product with K.
    pivoting : {"random", "greedy"}
        "greedy" takes the largest remaining diagonal entry, one at a time. "random" draws blocks of pivots in
        proportion to it (randomly pivoted Cholesky).

    Examples
    --------
    >>> import torch, rtgp
    >>> A = torch.eye(30) + torch.ones(30, 30)
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = rtgp.solve(A, torch.ones(30), preconditioner=rtgp.PivotedCholesky(rank=2), generator=generator)
    >>> bool((A @ x - 1).norm() < 0.1)
    True
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
        """The rank for a problem of a given size.

        Parameters
        ----------
        n : int
            The number of rows.
        right_hand_sides : int
            The number of columns in a run of conjugate gradients.

        Returns
        -------
        int
            The rank, at most n.
        """
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
        """A factor L with L L^T close to the matrix that has the given diagonal and rows.

        Parameters
        ----------
        diagonal : Tensor
            The diagonal of the matrix, (n,).
        rows : callable
            A function that gives rows of the matrix by their indices.
        right_hand_sides : int
            The number of columns in a run of conjugate gradients.
        generator : torch.Generator or None
            The source of random numbers.
        rank : int, optional
            The rank, in place of that of the settings.
        course : list, optional
            Where (rank, what of the trace a column takes there) is noted for every block of pivots: about the
            eigenvalues of the matrix.
        pivots : list, optional
            Where the pivots are noted.
        group : Group
            The ranks among which the rows of L are divided.
        dtype : torch.dtype
            In which the rows were computed. What is below its rounding is left out.

        Returns
        -------
        Tensor
            L (n, k) in float64, or this rank's rows of it.
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
    block_size, floor = min(rank, max(16, rank // 10)), _negligible(diagonal, dtype)

    def draw(remaining: Tensor, left: int) -> Tensor | None:
        count = min(block_size, left, int((remaining > floor).sum()))
        if count == 0:
            return None
        chances = torch.where(remaining > floor, remaining, 0.0).cpu()
        return torch.multinomial(chances, count, replacement=False, generator=generator).to(diagonal.device)

    return _by_blocks(diagonal, rows, rank, draw, floor, course, pivots, group)


def from_pivots(
    diagonal: Tensor,
    rows: Rows,
    blocks: Sequence[Tensor],
    group: Group = _ALONE,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """L (n, k) from pivots that are known, in the blocks in which they were taken: a smooth function of the matrix,
    where other pivots would be a jump."""
    left = iter(blocks)
    rank = sum(len(block) for block in blocks)
    return _by_blocks(
        diagonal, rows, rank, lambda *_: next(left, None), _negligible(diagonal, dtype), None, None, group
    )


def _by_blocks(
    diagonal: Tensor,
    rows: Rows,
    rank: int,
    draw: Callable[[Tensor, int], Tensor | None],
    floor: float,
    course: list[tuple[int, float]] | None,
    pivots: list[Tensor] | None,
    group: Group,
) -> Tensor:
    """L from blocks of pivots.

    `draw` takes what remains of the diagonal and the number of pivots that may still be taken, and returns the next
    block, or None for no more.
    """
    n, own = diagonal.shape[0], group.own(diagonal.shape[0])
    remaining = diagonal.clone()
    factor = diagonal.new_zeros(own.stop - own.start, rank)
    done = 0
    while done < rank:
        drawn = draw(remaining, rank - done)
        if drawn is None:
            break
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
    system: NoiseUnits,
    settings: PivotedCholesky,
    right_hand_sides: int,
    generator: torch.Generator,
    rank: int | None = None,
    course: list[tuple[int, float]] | None = None,
    pivots: list[Tensor] | None = None,
    known: Sequence[Tensor] = (),
) -> Tensor:
    """L (n, k) with L L^T close to S K S, or this rank's rows of it, as far as the working precision has it.

    See `PivotedCholesky.factor`. `known` are blocks of pivots to take in place of new ones.
    """
    if known:
        return from_pivots(system.kernel_diagonal(), system.own_kernel_rows, known, system.group, system.dtype)
    return settings.factor(
        system.kernel_diagonal(), system.own_kernel_rows, right_hand_sides, generator, rank, course, pivots,
        system.group, system.dtype,
    )  # fmt: skip
