"""The recurrence of preconditioned conjugate gradients, without a decision in it.

Nothing here waits for the device: a GPU runs ahead of the program that queues its work. (`FusedIteration` does the same
in fewer kernels, and replays a recording of them.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp.solvers.basis import KrylovBasis
from rtgp.solvers.preconditioner import Preconditioner


@dataclass(frozen=True)
class Looks:
    """What the host is told about each iteration of a chunk."""

    proxies: list[float]  # error proxy after it
    active: list[bool]  # whether a column is active after it
    positive: list[bool]  # whether every active column met positive curvature


@dataclass(frozen=True)
class Steps:
    """A chunk of iterations, (m, ...) each."""

    direction: Tensor  # (m, n, r)
    gamma: Tensor  # (m, r) float64
    beta: Tensor  # (m, r) float64
    squares: Tensor  # (m, r) float64, after the iteration
    active: Tensor  # (m, r) bool, after the iteration
    told: Tensor  # (m, 3) float64: proxy, whether a column is active, whether the curvature was positive

    def looks(self) -> Looks:
        told = self.told.tolist()
        return Looks([t[0] for t in told], [t[1] > 0 for t in told], [t[2] > 0 for t in told])

    def first(self, count: int) -> Steps:
        return Steps(*(getattr(self, name)[:count] for name in self.__dataclass_fields__))


class Iteration:
    """A run: its residuals and directions, updated in place."""

    def __init__(
        self,
        matmul: Callable[[Tensor], Tensor],
        rhs: Tensor,
        preconditioner: Preconditioner,
        precision: float,
        groups: Sequence[slice],
        reference: Mapping[int, float],
        basis: KrylovBasis | None,
    ) -> None:
        self._matmul, self._preconditioner = matmul, preconditioner
        self._precision, self._groups, self._basis = precision, groups, basis
        self._residual = rhs.clone(memory_format=torch.contiguous_format)
        conditioned, self._squares = preconditioner.solve(self._residual)  # P^-1 r and r^T P^-1 r
        self._conditioned, self._direction = conditioned, conditioned.clone()
        scale = self._squares.clone()
        for column, value in reference.items():
            scale[column] = value
        self._scale = torch.where(scale > 0, scale, 1.0)
        self.first_squares = self._squares.clone()
        self.active = self._squares / self._scale > precision**2  # (r,)

    def proxy(self) -> float:
        return float(self._proxy())

    def _proxy(self) -> Tensor:
        ratios = self._squares / self._scale
        return torch.stack([ratios[group].mean() for group in self._groups]).max().sqrt()

    def advance(self, count: int) -> Steps:
        """The next `count` iterations. Frozen columns contribute nothing and stay as they are."""
        steps = [self._step() for _ in range(count)]
        return Steps(*(torch.stack(part) for part in zip(*steps, strict=True)))

    def _step(self) -> tuple[Tensor, ...]:
        active, squares = self.active.clone(), self._squares.clone()
        direction = self._direction.clone()
        if self._basis is not None:
            self._basis.append(self._residual, self._conditioned, squares)
        product = self._matmul(direction)
        curvature = (direction * product).sum(0, dtype=torch.float64)  # d^T A d
        positive = ((curvature > 0) | ~active).all()
        gamma = torch.where(active & (curvature > 0), squares / curvature, 0.0)
        dtype = direction.dtype
        self._residual.addcmul_(product, gamma.to(dtype), value=-1.0)
        if self._basis is not None:
            self._basis.orthogonalise(self._residual)
        self._conditioned, new_squares = self._preconditioner.solve(self._residual)
        beta = torch.where(active, new_squares / squares, 0.0)
        self._squares.copy_(torch.where(active, new_squares, squares))
        self.active.copy_(active & (self._squares / self._scale > self._precision**2))
        beta = torch.where(self.active, beta, 0.0)
        # A frozen column contributes no further increment: its direction is zero from here on.
        self._direction.mul_(beta.to(dtype)).add_(self._conditioned).mul_(self.active.to(dtype))
        told = torch.stack([self._proxy(), self.active.any().double(), positive.double()])
        return direction, gamma, beta, self._squares.clone(), self.active.clone(), told
