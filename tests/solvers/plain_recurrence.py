"""`rtgp.operators._gpu.recurrence` in plain torch: `FusedIteration` and what it records, tried without Triton."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor


class Recurrence:
    def __init__(self, like: Tensor, scale: Tensor, floor: Tensor, groups: Sequence[slice]) -> None:
        self._scale, self._floor, self._groups = scale, floor, groups

    def descend(
        self, direction: Tensor, product: Tensor, whitened: Tensor, residual: Tensor, squares: Tensor, active: Tensor,
        gamma: Tensor, positive: Tensor,
    ) -> None:  # fmt: skip
        curvature = (direction * product).sum(0, dtype=torch.float64)
        working = active > 0
        moves = working & (curvature > 0)
        gamma.copy_(torch.where(moves, squares / curvature, 0.0))
        positive.fill_(float((moves | ~working).all()))
        residual.addcmul_(whitened, gamma.to(residual.dtype), value=-1.0)

    def turn(
        self, direction: Tensor, conditioned: Tensor, new_direction: Tensor, squares: Tensor, found: Tensor,
        active: Tensor, beta: Tensor, new_squares: Tensor, new_active: Tensor, proxy: Tensor,
    ) -> None:  # fmt: skip
        after = torch.where(active > 0, found, squares)
        still = (active > 0) & (after > self._floor)
        beta.copy_(torch.where(still, after / squares, 0.0))
        new_squares.copy_(after)
        new_active.copy_(still)
        ratios = after / self._scale
        proxy.copy_(torch.stack([ratios[group].mean() for group in self._groups]).max().sqrt())
        new_direction.copy_((direction * beta.to(direction) + conditioned) * still.to(direction))


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the Triton kernels, and on every device."""
    module = types.ModuleType("rtgp.operators._gpu.recurrence")
    module.Recurrence = Recurrence
    monkeypatch.setitem(sys.modules, "rtgp.operators._gpu.recurrence", module)
    monkeypatch.setattr("rtgp._solvers.cg.usable", lambda device: True)
