"""A covariance matrix K(X, X) as a small tree that can be evaluated, and differentiated, block by block.

Leaves are `Stationary` (closed formulas) and `Generic` (any GPyTorch kernel, by autograd over one block); inner nodes
are `Scaled`, `Sum` and `Product`. Nothing here ever holds an n x n matrix or an autograd tape over one: a form knows
the differentiable tensors it was made from (`tensors`), and `pullback` gives the gradient with respect to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Index = slice | Tensor  # which rows or columns: a slice, or an int64 tensor of positions
Gradients = list[Tensor]  # one float64 accumulator per tensor of a form, in order
Pullback = Callable[[Tensor, Gradients], None]  # (weight, into): to be called once, at the most


class KernelForm(ABC):
    """K(X, X), without noise. `size` points; blocks come in `dtype`."""

    size: int
    dtype: torch.dtype
    device: torch.device
    closed: bool  # whether formulas of ours make every block: several threads may then ask for blocks at once

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The differentiable tensors the matrix is a function of (they carry their own autograd history)."""

    @property
    @abstractmethod
    def hyperparameters(self) -> tuple[Tensor, ...]:
        """The trainable kernel parameters, as the optimiser sees them (unconstrained), each once."""

    @abstractmethod
    def block(self, rows: Index, cols: Index) -> Tensor:
        """K[rows, cols], a new tensor without autograd history."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of K, (n,)."""

    @abstractmethod
    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        """Add the gradient of sum(weight * K[rows, cols]) to `into`. `block` is K[rows, cols], where it is known
        already.
        """

    def gathered(self, index: Tensor) -> Tensor:
        """K[index_b, index_b] for the rows of index (b, k), (b, k, k), without autograd history.

        Many small blocks at once. The caller passes pieces of bounded size.
        """
        return torch.stack([self.block(row, row) for row in index])

    def gathered_pullback(self, index: Tensor, weight: Tensor, into: Gradients, blocks: Tensor | None = None) -> None:
        """Add the gradient of sum(weight * gathered(index)) to `into`. `blocks` is gathered(index), where it is known
        already.
        """
        for row, part in zip(index, weight, strict=True):
            self.pullback(row, row, part, into)

    def gathered_with_pullback(self, index: Tensor) -> tuple[Tensor, Pullback]:
        """gathered(index), and its `gathered_pullback`, which then need not compute everything twice.

        The caller does not write to the blocks before that.
        """
        blocks = self.gathered(index)
        return blocks, lambda weight, into: self.gathered_pullback(index, weight, into, blocks)

    def pullbacks(
        self,
        rows: Index,
        cols: Index,
        weights: Sequence[Tensor],
        into: Sequence[Gradients],
        block: Tensor | None = None,
    ) -> None:
        """`pullback` of every weight, each into gradients of its own; what they share is computed once."""
        for weight, gradients in zip(weights, into, strict=True):
            self.pullback(rows, cols, weight, gradients, block)

    def zero_gradients(self) -> Gradients:
        return [torch.zeros_like(t, dtype=torch.float64, requires_grad=False) for t in self.tensors]

    @abstractmethod
    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, dK[rows, cols] for each of its elements (numel, m, k)) for every hyperparameter."""

    def derivatives(
        self, rows: Index, cols: Index, v: Tensor, block: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, dK[rows, cols] @ v for each of its elements (numel, m, r)) for every hyperparameter.

        `block` is K[rows, cols], where it is known already.
        """
        for parameter, tangent in self.tangents(rows, cols):
            yield parameter, tangent @ v

    @abstractmethod
    def extended(self, x_new: Tensor) -> KernelForm:
        """The same kernel on the old points followed by x_new."""

    @abstractmethod
    def taken(self, index: Tensor) -> KernelForm:
        """The same kernel on the points of index (m,), in that order."""

    def widened(self) -> KernelForm | None:
        """The same in float64; None where the entries themselves are computed in less."""
        return self if self.dtype == torch.float64 else None


def unique(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Each tensor once, by identity, in order."""
    return tuple({id(t): t for t in tensors}.values())


def pull_through(
    evaluate: Callable[[Tensor], Tensor | None],
    x: Tensor,
    parameters: Sequence[Tensor],
    weight: Tensor,
    into: Gradients,
) -> bool:
    """Add the gradient of sum(weight * evaluate(x)) by the parameters and, where it has a history, by x.

    False where `evaluate` returns None: nothing has been added.
    """
    inputs = list(parameters)
    with torch.enable_grad():
        leaf = x.detach()
        if x.requires_grad:
            leaf.requires_grad_(True)
            inputs.append(leaf)
        if not inputs:
            return True
        value = evaluate(leaf)
        if value is None or not value.requires_grad:
            return value is not None
        found = torch.autograd.grad(value, inputs, grad_outputs=weight.to(value.dtype), allow_unused=True)
    for total, gradient in zip(into, found, strict=True):
        if gradient is not None:
            total += gradient
    return True


def add_rows(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """total[index_i] += rows_i, in an order that is always the same."""
    if total.is_cuda:  # index_add_ adds in any order there; this one sorts
        total.index_put_((index,), rows, accumulate=True)
    else:
        total.index_add_(0, index, rows)
