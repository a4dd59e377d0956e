"""Any GPyTorch kernel as a form: blocks by calling it, derivatives by autograd over one block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rtgp._kernels.form import Gradients, Index, KernelForm, pull_through

# A kernel that treats a batch as something else is off by its own size; rounding in GPyTorch's distances by less.
_SAME_BLOCK = {torch.float64: 1e-6, torch.float32: 1e-3}


class Generic(KernelForm):
    """Any GPyTorch kernel: `evaluate(x1, x2)` gives a dense block with its autograd history."""

    closed = False

    def __init__(
        self,
        evaluate: torch.nn.Module,  # forward(x1, x2) -> (m, k)
        x: Tensor,  # (..., n, d)
        select: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self.evaluate, self.x, self.select = evaluate, x, select
        self.size, self.dtype, self.device = x.shape[-2], dtype, x.device
        self._parameters = tuple(p for p in evaluate.parameters() if p.requires_grad)
        self._takes_batches = True  # until it turns out not to

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self._parameters, self.x) if self.x.requires_grad else self._parameters

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        return self._parameters

    def block(self, rows: Index, cols: Index) -> Tensor:
        with torch.no_grad():
            block: Tensor = self.evaluate(self.x[..., rows, :], self.x[..., cols, :])
            return block.to(self.dtype).clone()

    def diagonal(self) -> Tensor:
        chunk = 256
        starts = range(0, self.size, chunk)
        return torch.cat([self.block(slice(s, s + chunk), slice(s, s + chunk)).diagonal() for s in starts])

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        def evaluate(x: Tensor) -> Tensor:
            value: Tensor = self.evaluate(x[..., rows, :], x[..., cols, :])
            return value

        pull_through(evaluate, self.x, self._parameters, weight, into)

    def _evaluate_batch(self, x: Tensor, index: Tensor) -> Tensor | None:
        """The blocks (b, k, k) by one call of the kernel, with history; None where it does not take batches."""
        if not self._takes_batches or index.shape[0] <= 2:
            return None
        points = x[..., index, :]  # (..., b, k, d)
        # A kernel that is a batch itself has its own dimension between that of the blocks and the points.
        points = points.movedim(-3, 0) if x.ndim > 2 else points
        if x.ndim == 2 and getattr(self.evaluate, "sum_over_batch", False):
            points = points[:, None]
        try:
            blocks: Tensor = self.evaluate(points, points)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError, AssertionError):
            self._takes_batches = False
            return None
        self._takes_batches = blocks.shape == (*index.shape, index.shape[1]) and all(
            self._is_block(blocks[b], index[b]) for b in (0, -1)
        )
        return blocks if self._takes_batches else None

    def _is_block(self, found: Tensor, row: Tensor) -> bool:
        block = self.block(row, row)
        tolerance = _SAME_BLOCK[torch.float32 if torch.float32 in (found.dtype, block.dtype) else torch.float64]
        return bool((found.detach() - block).abs().max() <= tolerance * block.abs().max())

    def gathered(self, index: Tensor) -> Tensor:
        with torch.no_grad():
            blocks = self._evaluate_batch(self.x, index)
            return super().gathered(index) if blocks is None else blocks.to(self.dtype).clone()

    def gathered_pullback(self, index: Tensor, weight: Tensor, into: Gradients, blocks: Tensor | None = None) -> None:
        if not pull_through(lambda x: self._evaluate_batch(x, index), self.x, self._parameters, weight, into):
            super().gathered_pullback(index, weight, into)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        # The reverse pass is linear in its cotangent w; differentiating it in w gives the forward derivative.
        # (Forward mode itself is not implemented by all the operations GPyTorch's kernels use.)
        x = self.x.detach()
        with torch.enable_grad(), _TwiceDifferentiableDistances():
            value = self.evaluate(x[..., rows, :], x[..., cols, :])
            if not value.requires_grad:
                return
            w = torch.zeros_like(value, requires_grad=True)
            found = torch.autograd.grad(value, self._parameters, w, create_graph=True, allow_unused=True)
        for parameter, gradient in zip(self._parameters, found, strict=True):
            if gradient is None:
                continue
            pieces = [torch.autograd.grad(g, w, retain_graph=True)[0] for g in gradient.reshape(-1)]
            yield parameter, torch.stack(pieces).to(self.dtype)

    def extended(self, x_new: Tensor) -> KernelForm:
        return Generic(self.evaluate, torch.cat([self.x, self.select(x_new)], dim=-2), self.select, self.dtype)

    def taken(self, index: Tensor) -> KernelForm:
        return Generic(self.evaluate, self.x[..., index, :], self.select, self.dtype)


class _TwiceDifferentiableDistances(TorchFunctionMode):
    """Within it torch.cdist, which GPyTorch's kernels use and which has no second derivative, is plain arithmetic."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.cdist:
            return func(*args, **(kwargs or {}))
        squared = (args[0].unsqueeze(-2) - args[1].unsqueeze(-3)).square().sum(-1)
        return squared.clamp_min(1e-30).sqrt()  # clamped: no gradient where two points are equal, as in cdist
