"""`Iteration` on a card: the same recurrence in fused kernels, each writing where the next one reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rtgp.solvers.iteration import Iteration, Steps
from rtgp.solvers.preconditioner import Preconditioner


class FusedIteration(Iteration):
    """Chunks of `count` iterations. The first runs as it comes, the second is recorded (a CUDA graph) and from then on
    replayed, in later runs too."""

    def __init__(
        self,
        matmul: Callable[[Tensor], Tensor],
        rhs: Tensor,
        preconditioner: Preconditioner,
        precision: float,
        groups: Sequence[slice],
        reference: Mapping[int, float],
        count: int,
    ) -> None:
        from rtgp.solvers.recurrence import Recurrence

        super().__init__(matmul, rhs, preconditioner, precision, groups, reference, None)
        n, r = rhs.shape
        self._count = count
        self._chunks = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._floor = self._scale * precision**2
        self._recurrence = Recurrence(rhs, self._scale, self._floor, groups)
        # Slot j + 1 is what iteration j makes of slot j; a chunk begins with what the last slot holds.
        self._directions = rhs.new_empty(count + 1, n, r)
        self._scalars = torch.zeros(count + 1, 4 * r + 3, dtype=torch.float64, device=rhs.device)
        self._slots = [self._named(row) for row in self._scalars]
        self._place(self)

    def works_on(self, matmul: Callable[[Tensor], Tensor], preconditioner: Preconditioner) -> bool:
        return matmul == self._matmul and preconditioner is self._preconditioner

    def fits(self, rhs: Tensor, precision: float, groups: Sequence[slice], count: int) -> bool:
        mine = (self._residual.shape, self._residual.dtype, self._precision, list(self._groups), self._count)
        return mine == (rhs.shape, rhs.dtype, precision, list(groups), count)

    def restart(self, rhs: Tensor, reference: Mapping[int, float]) -> None:
        """From the beginning, with other right-hand sides of the same shape."""
        fresh = Iteration(self._matmul, rhs, self._preconditioner, self._precision, self._groups, reference, None)
        self._residual.copy_(fresh._residual)
        self._scale.copy_(fresh._scale)
        torch.mul(self._scale, self._precision**2, out=self._floor)
        self._squares, self.first_squares, self.active = fresh._squares, fresh.first_squares, fresh.active
        self._place(fresh)

    def _place(self, start: Iteration) -> None:
        self._directions[-1] = start._direction
        self._slots[-1]["squares"].copy_(start._squares)
        self._slots[-1]["active"].copy_(start.active)

    @staticmethod
    def _named(row: Tensor) -> dict[str, Tensor]:
        r = (len(row) - 3) // 4
        names = ("gamma", "beta", "squares", "active")
        parts = {name: row[k * r : (k + 1) * r] for k, name in enumerate(names)}
        return parts | {"told": row[4 * r : 4 * r + 2], "positive": row[4 * r + 2]}

    def advance(self, count: int) -> Steps:
        assert count == self._count
        self._chunks += 1
        if self._chunks == 1 or not self._residual.is_cuda:
            self._run()  # which compiles what has not been compiled yet
        else:
            self._graph = self._graph or self._recorded_run()
            self._graph.replay()
        r, scalars = self._residual.shape[1], self._scalars[1:].clone()  # the next chunk writes to the same memory
        gamma, beta, squares, active = (scalars[:, k * r : (k + 1) * r] for k in range(4))
        return Steps(self._directions[:-1], gamma, beta, squares, active > 0, scalars[:, 4 * r :])

    def _recorded_run(self) -> torch.cuda.CUDAGraph:
        """Not by torch.cuda.graph, which begins by handing all cached memory back to the system."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._residual.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                self._run()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph

    def _run(self) -> None:
        self._directions[0].copy_(self._directions[-1])
        self._scalars[0].copy_(self._scalars[-1])
        for j in range(self._count):
            now, then = self._slots[j], self._slots[j + 1]
            direction = self._directions[j]
            product = self._matmul(direction)
            self._recurrence.descend(
                direction, product, self._residual, now["squares"], now["active"], then["gamma"], then["positive"]
            )
            conditioned, found = self._preconditioner.solve(self._residual)
            self._recurrence.turn(
                direction, conditioned, self._directions[j + 1], now["squares"], found, now["active"],
                then["beta"], then["squares"], then["active"], then["told"],
            )  # fmt: skip
