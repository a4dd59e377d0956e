"""Kernels of several outputs for each point: values with their derivatives, and whatever else a kernel may return."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rtgp._kernels.form import Gradients, Index, KernelForm, pull_through
from rtgp._kernels.positions import At


class ManyOutputs(KernelForm):
    """`evaluate(x1, x2)` gives a block (m t, k t) with its history: t rows for each point, side by side.

    What a block is made of are whole points; of these the rows asked for are kept.
    """

    words = "a kernel of several outputs"
    closed = False
    hyperparameters: tuple[Tensor, ...] = ()

    def __init__(
        self,
        evaluate: torch.nn.Module,  # forward(x1, x2) -> (m t, k t)
        x: Tensor,  # (n, d)
        outputs: int,  # t
        select: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self.evaluate, self.x, self.outputs, self.select = evaluate, x, outputs, select
        self.size, self.dtype, self.device = len(x) * outputs, dtype, x.device
        self._parameters = tuple(p for p in evaluate.parameters() if p.requires_grad)
        self._row = torch.arange(self.size, device=x.device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self._parameters, self.x) if self.x.requires_grad else self._parameters

    def _points(self, rows: Index) -> tuple[Tensor, Tensor]:
        """The points that the rows belong to, each once, and the place of each row among all of theirs."""
        row = self._row[rows]
        points, place = torch.unique(row // self.outputs, return_inverse=True)
        return points, place * self.outputs + row % self.outputs

    def block(self, rows: Index, cols: Index) -> Tensor:
        (r, at_row), (c, at_col) = self._points(rows), self._points(cols)
        with torch.no_grad():
            whole: Tensor = self.evaluate(self.x[r], self.x[c])
        return whole.to(self.dtype)[at_row][:, at_col]

    def diagonal(self) -> Tensor:
        chunk = 64 * self.outputs
        pieces = [slice(start, start + chunk) for start in range(0, self.size, chunk)]
        return torch.cat([self.block(piece, piece).diagonal() for piece in pieces])

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        (r, at_row), (c, at_col) = self._points(rows), self._points(cols)

        def evaluate(x: Tensor) -> Tensor:
            value: Tensor = self.evaluate(x[r], x[c])[at_row][:, at_col]
            return value

        pull_through(evaluate, self.x, self._parameters, weight, into)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()

    def taken(self, index: Tensor) -> KernelForm:
        return At(self, index)

    def extended(self, x_new: Tensor) -> KernelForm:
        return ManyOutputs(
            self.evaluate, torch.cat([self.x, self.select(x_new)]), self.outputs, self.select, self.dtype
        )
