"""`Iteration` on a card: the same recurrence in fused kernels, each writing where the next one reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rtgp._solvers.iteration import Chunk, Iteration, IterationLog, Whitening
from rtgp._solvers.recorder import CudaRecorder, Recorder
from rtgp._solvers.replays import Replays

_AHEAD = 2**16  # rows up to which a card is done with a chunk before the host has looked at it


class FusedIteration(Iteration):
    """Chunks of `count` iterations. The first runs as it comes, later ones are recorded (a CUDA graph for each half of
    the memory) and from then on replayed, in later runs too, until `release`.

    The memory has two halves, which chunks take in turn: one may be queued before what the other holds has been used.

    Parameters
    ----------
    recorder : Recorder | None
        CUDA's on a card, none elsewhere, by default.
    """

    def __init__(
        self,
        matmul: Callable[[Tensor], Tensor],
        residual: Tensor,
        preconditioner: Whitening,
        precision: float,
        groups: Sequence[slice],
        reference: Mapping[int, float],
        count: int,
        recorder: Recorder | None = None,
    ) -> None:
        from rtgp.operators._gpu.recurrence import Recurrence

        super().__init__(matmul, residual, preconditioner, precision, groups, reference, None)
        self._count, self._next, self._expected = count, 0, 0
        self._compiled = False
        self._floor = self._scale * precision**2
        self._recurrence = Recurrence(residual, self._scale, self._floor, groups)
        halves = 2 if residual.shape[0] <= _AHEAD else 1
        self._halves = [_Half(count, residual) for _ in range(halves)]
        if recorder is None and residual.is_cuda:
            recorder = CudaRecorder(residual.device)
        self._replays = Replays(recorder)
        self._place(self)

    def works_on(self, matmul: Callable[[Tensor], Tensor], preconditioner: Whitening) -> bool:
        return matmul == self._matmul and preconditioner is self._preconditioner

    def fits(self, residual: Tensor, precision: float, groups: Sequence[slice], count: int) -> bool:
        mine = (self._residual.shape, self._residual.dtype, self._precision, list(self._groups), self._count)
        return mine == (residual.shape, residual.dtype, precision, list(groups), count)

    def restart(self, residual: Tensor, reference: Mapping[int, float]) -> None:
        """From the beginning, with other right-hand sides of the same shape."""
        fresh = Iteration(self._matmul, residual, self._preconditioner, self._precision, self._groups, reference, None)
        self._residual.copy_(fresh._residual)
        self._scale.copy_(fresh._scale)
        torch.mul(self._scale, self._precision**2, out=self._floor)
        self.first_squares, self.first_active = fresh.first_squares, fresh.first_active
        self.first_proxy = fresh.first_proxy
        self._place(fresh)

    def _place(self, start: Iteration) -> None:
        """Where the first chunk looks for what was before it."""
        self._next, last = 0, self._halves[-1]
        last.directions[-1] = start._direction
        last.slots[-1]["squares"].copy_(start._squares)
        last.slots[-1]["active"].copy_(start._active)

    def expects(self, iterations: int) -> bool:
        return len(self._halves) > 1 and iterations <= self._expected

    def ended(self, iterations: int) -> None:
        self._expected = iterations

    def advance(self, count: int) -> Chunk:
        assert count == self._count
        number, half, before = self._next, self._halves[self._next], self._halves[self._next - 1]
        self._next = (self._next + 1) % len(self._halves)
        if self._compiled:
            self._replays.run(number, lambda: self._run(half, before))
        else:
            self._run(half, before)
            self._compiled = True
        return Chunk(half.directions[:-1], half.sent())

    def release(self) -> None:
        """Free the recordings. The next chunk is recorded again."""
        self._replays.release()

    def _run(self, half: _Half, before: _Half) -> None:
        half.directions[0].copy_(before.directions[-1])
        half.scalars[0].copy_(before.scalars[-1])
        for j in range(self._count):
            now, then = half.slots[j], half.slots[j + 1]
            direction = half.directions[j]
            product = self._matmul(direction)
            self._recurrence.descend(
                direction, product, self._preconditioner.whiten(product), self._residual, now["squares"],
                now["active"], then["gamma"], then["positive"],
            )  # fmt: skip
            conditioned, found = self._preconditioner.conditioned(self._residual)
            self._recurrence.turn(
                direction, conditioned, half.directions[j + 1], now["squares"], found, now["active"],
                then["beta"], then["squares"], then["active"], then["proxy"],
            )  # fmt: skip


class _Half:
    """The memory of a chunk: slot j + 1 is what iteration j makes of slot j; slot 0 is what was before."""

    def __init__(self, count: int, rhs: Tensor) -> None:
        n, r = rhs.shape
        self.directions = rhs.new_empty(count + 1, n, r)
        self.scalars = torch.zeros(count + 1, 4 * r + 2, dtype=torch.float64, device=rhs.device)
        self.slots = [_named(row) for row in self.scalars]
        self._here = torch.empty(count, 4 * r + 2, dtype=torch.float64, pin_memory=rhs.is_cuda)

    def sent(self) -> Callable[[], IterationLog]:
        """Its scalars are on their way to the host; what waits for them, and not for what is queued after them."""
        self._here.copy_(self.scalars[1:], non_blocking=True)
        arrival: torch.cuda.Event | None = None
        if self.scalars.is_cuda:  # the card of the numbers need not be the current one
            arrival = torch.cuda.current_stream(self.scalars.device).record_event()

        def log() -> IterationLog:
            if arrival is not None:
                arrival.synchronize()
            return IterationLog(self._here.clone())  # the next chunk writes to the same memory

        return log


def _named(row: Tensor) -> dict[str, Tensor]:
    """Views of gamma, beta, squares and active (r,), proxy and positive (): the order of `IterationLog`."""
    r = (len(row) - 2) // 4
    parts = {name: row[k * r : (k + 1) * r] for k, name in enumerate(("gamma", "beta", "squares", "active"))}
    return parts | {"proxy": row[4 * r], "positive": row[4 * r + 1]}
