"""Makes a preconditioner of a given shape, with its control variate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._preconditioners.combined import LowRankAndNeighboursInverse
from rtgp._preconditioners.low_rank import LowRank
from rtgp._preconditioners.neighbour_control import NeighbourControl
from rtgp._preconditioners.nystroem_control import NystroemControl
from rtgp._preconditioners.pivoted_cholesky import PivotedCholesky, factor_of
from rtgp._preconditioners.protocol import Control, Preconditioner
from rtgp._preconditioners.shape import Shape
from rtgp._preconditioners.sparse_inverse import SparseInverse, neighbours_of
from rtgp._solvers import NoiseUnits


@dataclass(frozen=True)
class BuildSettings:
    """How preconditioners are made.

    Attributes
    ----------
    candidates : int
        Near points for each neighbour that is taken, where they are ranked by what the low rank leaves. The runs on
        kin40k (n = 8,000) that chose this form had as many.
    flattest, steepest : float
        Bounds of the power of the rank with which eigenvalues fall. A fit to a few ranks outside of them is not
        believed. Chosen, not fitted.
    """

    candidates: int = 4
    flattest: float = 0.5
    steepest: float = 16.0


DEFAULT = BuildSettings()


@dataclass(frozen=True)
class Built:
    """A preconditioner as it was made."""

    shape: Shape
    preconditioner: Preconditioner
    decay: float = 1.0  # the eigenvalues of A fall like rank^-decay
    pattern: Tensor | None = None  # (n, c): the nearest earlier points that neighbours were taken from
    factor: Tensor | None = None  # L (n, k), or this rank's rows where there are no neighbours
    pivots: tuple[Tensor, ...] = ()  # that L was made from, in blocks

    def control(self, dtype: torch.dtype) -> Control | None:
        """Its control variate."""
        made = self.preconditioner
        if isinstance(made, SparseInverse):
            return NeighbourControl(made)
        if self.factor is None or not self.pivots:
            return None
        assert isinstance(made, (LowRank, LowRankAndNeighboursInverse))
        return NystroemControl.of(made, self.factor, torch.cat(self.pivots), dtype)


def build(
    shape: Shape,
    system: NoiseUnits,
    generator: torch.Generator,
    pivoting: PivotedCholesky | None = None,
    pattern: Tensor | None = None,
    settings: BuildSettings = DEFAULT,
    known: Sequence[Tensor] = (),
) -> Built:
    """Make a preconditioner of a given shape.

    `pattern` is that of an earlier one, where that still serves and has enough columns. `known` are the pivots of an
    earlier one, in blocks, to take again.
    """
    n, noise, form = system.size, system.noise, system.operator.form
    course: list[tuple[int, float]] = []
    pivots: list[Tensor] = list(known)
    factor = None
    if shape.rank or not shape.count:
        pivoting = PivotedCholesky() if pivoting is None else pivoting
        noted = None if known else pivots
        factor = factor_of(system, pivoting, 1, generator, shape.rank, course, noted, known)
    if not shape.count or (factor is not None and factor.shape[1] == 0):
        assert factor is not None
        made: Preconditioner = LowRank(factor, system.dtype, system.group, n)
    else:
        wanted = min(shape.count * (1 if factor is None else settings.candidates), max(n - 1, 1))
        if pattern is None or pattern.shape[1] < wanted:
            pattern = neighbours_of(system, wanted, generator)
        if factor is None:
            made = SparseInverse.of(form, noise, pattern[:, : shape.count], system.dtype)
        else:
            factor = system.group.gather_rows(factor, n)  # like G, the same on every rank
            made = LowRankAndNeighboursInverse.of(form, noise, factor, pattern[:, :wanted], shape.count, system.dtype)
    # What it came to: a kernel of low rank has fewer columns than were asked for.
    shape = Shape(made.rank, made.neighbours)
    return Built(shape, made, decay_of(course, settings), pattern, factor, tuple(pivots))


def decay_of(course: list[tuple[int, float]], settings: BuildSettings = DEFAULT) -> float:
    """The slope of log(1 + eigenvalue) against log(rank), a line through the second half of the ranks."""
    points = [(math.log(k), math.log1p(eigenvalue)) for k, eigenvalue in course]
    points = [point for point in points if point[0] >= points[-1][0] - math.log(2.0)]
    if len(points) < 2:
        return 1.0
    x, y = torch.tensor(points, dtype=torch.float64).T
    x = x - x.mean()
    slope = -float((x * y).sum() / x.square().sum())
    return min(max(slope, settings.flattest), settings.steepest)
