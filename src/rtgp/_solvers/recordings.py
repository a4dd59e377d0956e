"""Recorded runs of conjugate gradients, kept from one call to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from torch import Tensor

from rtgp._solvers.fused_iteration import FusedIteration
from rtgp._solvers.iteration import Whitening

_MOST = 4


class Recordings:
    """Recording a run takes as long as twenty iterations of it. One that is kept serves every run on the same system
    and preconditioner, the same objects, whatever has been written into them since. Whoever makes it ends it, by
    `release` or as a context."""

    def __init__(self) -> None:
        self._kept: list[FusedIteration] = []

    def start(
        self,
        matmul: Callable[[Tensor], Tensor],
        residual: Tensor,
        preconditioner: Whitening,
        precision: float,
        groups: Sequence[slice],
        reference: Mapping[int, float],
        count: int,
    ) -> FusedIteration:
        """A run from the beginning, by an earlier recording where there is one."""
        # Those of another system or preconditioner will not be asked for again, and hold memory.
        fitting = [run for run in self._kept if run.works_on(matmul, preconditioner)][-_MOST:]
        self._release_all_but(fitting)
        for run in self._kept:
            if run.fits(residual, precision, groups, count):
                run.restart(residual, reference)
                return run
        made = FusedIteration(matmul, residual, preconditioner, precision, groups, reference, count)
        self._kept.append(made)
        return made

    def release(self) -> None:
        """Free everything. The next run is recorded again."""
        self._release_all_but([])

    def _release_all_but(self, kept: list[FusedIteration]) -> None:
        others = [run for run in self._kept if not any(run is one for one in kept)]
        self._kept = kept
        for run in others:
            run.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __deepcopy__(self, memo: object) -> Recordings:
        return Recordings()

    def __reduce__(self) -> tuple[type[Recordings], tuple[()]]:
        return Recordings, ()
