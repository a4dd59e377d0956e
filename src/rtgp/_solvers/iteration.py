"""The recurrence of preconditioned conjugate gradients, without a decision in it.

After the start, nothing here waits for the device: a GPU runs ahead of the program that queues its work.
(`FusedIteration` does the same in fewer kernels, and replays a recording of them.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rtgp._solvers.basis import KrylovBasis


class Whitening(Protocol):
    """The two halves of P^-1 = F^-T F^-1. Conjugate gradients keep their residual whitened and their directions and
    solutions in the original coordinates, so that nobody ever forms F e for a probe e."""

    def whiten(self, v: Tensor) -> Tensor:
        """F^-1 v, (n, r) -> (n, r), a new tensor."""
        ...

    def conditioned(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """F^-T rho for a whitened residual rho (n, r), a new tensor, and |rho|^2 = r^T P^-1 r, (r,) float64."""
        ...


class IterationLog:
    """What the host reads of each of m iterations, on the CPU.

    Parameters
    ----------
    table : Tensor
        (m, 4 r + 2) float64: gamma, beta, the squares after the iteration, whether a column is active after it (r
        each), the error proxy after it, and whether every active column met positive curvature.
    """

    def __init__(self, table: Tensor) -> None:
        self.table, self._rows = table, table.tolist()
        self._r = r = (table.shape[1] - 2) // 4
        self.gammas, self.betas, self.squares = (table[:, k * r : (k + 1) * r] for k in range(3))  # (m, r) each

    @staticmethod
    def nothing(r: int) -> Tensor:
        """The table of no iterations."""
        return torch.zeros(0, 4 * r + 2, dtype=torch.float64)

    def gamma(self, j: int) -> list[float]:
        row: list[float] = self._rows[j][: self._r]
        return row

    def active(self, j: int) -> int:
        """How many columns are."""
        return sum(value > 0 for value in self._rows[j][3 * self._r : 4 * self._r])

    def proxy(self, j: int) -> float:
        return float(self._rows[j][-2])

    def positive(self, j: int) -> bool:
        return bool(self._rows[j][-1] > 0)


@dataclass(frozen=True)
class Chunk:
    """m iterations that have been queued."""

    direction: Tensor  # (m, n, r)
    log: Callable[[], IterationLog]  # waits for them


class Iteration:
    """A run: its residuals, whitened, and its directions, in the original coordinates, updated in place."""

    def __init__(
        self,
        matmul: Callable[[Tensor], Tensor],
        residual: Tensor,
        preconditioner: Whitening,
        precision: float,
        groups: Sequence[slice],
        reference: Mapping[int, float],
        basis: KrylovBasis | None,
    ) -> None:
        self._matmul, self._preconditioner = matmul, preconditioner
        self._precision, self._groups, self._basis = precision, groups, basis
        self._residual = residual.clone(memory_format=torch.contiguous_format)
        self._direction, self._squares = preconditioner.conditioned(self._residual)  # P^-1 r and r^T P^-1 r
        # What is decided from the few numbers of a run is decided on the host, which here waits for the device once.
        self.first_squares = self._squares.to("cpu", copy=True)  # (r,)
        self._set_scale(reference)

    def _set_scale(self, reference: Mapping[int, float]) -> None:
        """What squares are measured against, and which columns are active at the start."""
        scale = self.first_squares.clone()
        for column, value in reference.items():
            scale[column] = value
        scale = torch.where(scale > 0, scale, 1.0)
        ratios = self.first_squares / scale
        active = ratios > self._precision**2  # (r,)
        self.first_active = int(active.sum())
        self.first_proxy = float(self._proxy(ratios))
        device = self._residual.device
        self._scale, self._active = scale.to(device), active.to(device)

    def _proxy(self, ratios: Tensor) -> Tensor:
        return torch.stack([ratios[group].mean() for group in self._groups]).max().sqrt()

    def expects(self, iterations: int) -> bool:
        """Whether the run will probably be as long as this, so that iterations may be queued before they are needed."""
        return False

    def ended(self, iterations: int) -> None:
        """The run is over after so many."""

    def advance(self, count: int) -> Chunk:
        """The next `count` iterations. Frozen columns contribute nothing and stay as they are."""
        directions, tables = zip(*(self._step() for _ in range(count)), strict=True)
        direction = torch.stack(directions) if count > 1 else directions[0][None]
        return Chunk(direction, lambda: IterationLog(torch.stack(tables).cpu()))

    def _step(self) -> tuple[Tensor, Tensor]:
        active, squares = self._active.clone(), self._squares.clone()
        direction = self._direction.clone()
        if self._basis is not None:
            self._basis.append(self._residual, squares)
        product = self._matmul(direction)
        curvature = (direction * product).sum(0, dtype=torch.float64)  # d^T A d
        positive = ((curvature > 0) | ~active).all()
        gamma = torch.where(active & (curvature > 0), squares / curvature, 0.0)
        dtype = direction.dtype
        self._residual.addcmul_(self._preconditioner.whiten(product), gamma.to(dtype), value=-1.0)
        if self._basis is not None:
            self._basis.orthogonalise(self._residual)
        conditioned, new_squares = self._preconditioner.conditioned(self._residual)
        beta = torch.where(active, new_squares / squares, 0.0)
        self._squares.copy_(torch.where(active, new_squares, squares))
        self._active.copy_(active & (self._squares / self._scale > self._precision**2))
        beta = torch.where(self._active, beta, 0.0)
        # A frozen column contributes no further increment: its direction is zero from here on.
        self._direction.mul_(beta.to(dtype)).add_(conditioned).mul_(self._active.to(dtype))
        last = torch.stack([self._proxy(self._squares / self._scale), positive.double()])
        return direction, torch.cat([gamma, beta, self._squares, self._active.double(), last])
