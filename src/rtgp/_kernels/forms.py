"""A covariance matrix K(X, X) as a small tree that can be evaluated, and differentiated, block by block.

Leaves are `Stationary` (closed formulas) and `Generic` (any GPyTorch kernel, by autograd over one block); inner nodes
are `Scaled`, `Sum` and `Product`. Nothing here ever holds an n x n matrix or an autograd tape over one: a form knows
the differentiable tensors it was made from (`tensors`), and `pullback` gives the gradient with respect to them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rtgp._kernels.formulas import (
    RadialFormula,
    centre,
    difference_sums,
    gathered_difference_sums,
    gathered_squared_distances,
    squared_difference_products,
    squared_distances,
)
from rtgp._kernels.raw import Raw

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


class Stationary(KernelForm):
    """k(|z_i - z_j|^2) with z = x / lengthscale, kept in float64 whatever the working precision."""

    closed = True

    def __init__(
        self,
        formula: RadialFormula,
        x: Tensor,  # (n, d)
        lengthscale: Tensor,  # (1, d) or (1, 1), with its history
        raw_lengthscale: Raw | None,
        select: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self.formula, self.x, self.select = formula, x, select
        self.lengthscale, self.raw_lengthscale = lengthscale, raw_lengthscale
        self.size, self.dtype, self.device = x.shape[0], dtype, x.device
        # Only differences matter: centring keeps the expanded squares small.
        x = x.double()
        self.z = (x - centre(x.detach())) / lengthscale.double()  # (n, d)
        self._z = self.z.detach()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.z,)

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        return () if self.raw_lengthscale is None else (self.raw_lengthscale.parameter,)

    def _squared(self, rows: Index, cols: Index) -> Tensor:
        return squared_distances(self._z[rows], self._z[cols]).to(self.dtype)

    def block(self, rows: Index, cols: Index) -> Tensor:
        return self.formula.value(self._squared(rows, cols))

    def diagonal(self) -> Tensor:
        return torch.ones(self.size, dtype=self.dtype, device=self.device)

    def _slope(self, rows: Index, cols: Index, block: Tensor | None) -> Tensor:
        if block is not None and self.formula.slope_from_value is not None:
            return self.formula.slope_from_value(block)
        return self.formula.slope(self._squared(rows, cols))

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        self.pullbacks(rows, cols, [weight], [into], block)

    def pullbacks(
        self,
        rows: Index,
        cols: Index,
        weights: Sequence[Tensor],
        into: Sequence[Gradients],
        block: Tensor | None = None,
    ) -> None:
        # dz_i += sum_j 2 H_ij (z_i - z_j),  dz_j -= sum_i 2 H_ij (z_i - z_j),  H = weight * slope.
        # In float64: the same H enters both terms of each difference, so that nothing is lost in it.
        slope, (z_rows, z_cols) = self._slope(rows, cols, block), (self._z[rows], self._z[cols])
        for weight, gradients in zip(weights, into, strict=True):
            by_rows, by_cols = difference_sums((slope * weight).double(), z_rows, z_cols)
            gradients[0][rows] += 2.0 * by_rows
            gradients[0][cols] += 2.0 * by_cols

    def gathered(self, index: Tensor) -> Tensor:
        return self.formula.value(gathered_squared_distances(self._z[index]).to(self.dtype))

    def gathered_pullback(self, index: Tensor, weight: Tensor, into: Gradients, blocks: Tensor | None = None) -> None:
        z = self._z[index]  # (b, k, d)
        if blocks is not None and self.formula.slope_from_value is not None:
            slope = self.formula.slope_from_value(blocks)
        else:
            slope = self.formula.slope(gathered_squared_distances(z).to(self.dtype))
        self._pull(index, z, slope, weight, into)

    def gathered_with_pullback(self, index: Tensor) -> tuple[Tensor, Pullback]:
        z = self._z[index]
        blocks, slope = self.formula.both(gathered_squared_distances(z).to(self.dtype))
        return blocks, lambda weight, into: self._pull(index, z, slope, weight, into)

    def _pull(self, index: Tensor, z: Tensor, slope: Tensor, weight: Tensor, into: Gradients) -> None:
        h = slope.double() * weight
        gradient = gathered_difference_sums(h + h.mT, z).mul_(2.0)  # dz_i = 2 sum_j (H_ij + H_ji) (z_i - z_j)
        add_rows(into[0], index.reshape(-1), gradient.reshape(-1, z.shape[2]))

    def derivatives(
        self, rows: Index, cols: Index, v: Tensor, block: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        # dK/dl_a = 2 slope (z_ia - z_ja)^2 (-1 / l_a)
        if self.raw_lengthscale is None:
            return
        parts = squared_difference_products(self._z[rows], self._z[cols], self._slope(rows, cols, block), v)
        yield from self.derivatives_from(parts)

    def derivatives_from(self, parts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The same, given sum_j slope_ij (z_ia - z_ja)^2 v_j for every input a, (d, m, r)."""
        if self.raw_lengthscale is not None:
            products = self._chain(parts.double() * -2.0).to(self.dtype)
            yield self.raw_lengthscale.parameter, self.raw_lengthscale.among_all(products)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        if self.raw_lengthscale is None:
            return
        h = self._slope(rows, cols, None).double().mul_(-2.0)
        difference = self._z[rows].T[:, :, None] - self._z[cols].T[:, None, :]  # (d, m, k)
        tangents = self._chain(difference.square_().mul_(h)).to(self.dtype)
        yield self.raw_lengthscale.parameter, self.raw_lengthscale.among_all(tangents)

    def _chain(self, per_input: Tensor) -> Tensor:
        """From d/dlog-like parts per input (d, ...) to derivatives with respect to raw_lengthscale (numel, ...)."""
        assert self.raw_lengthscale is not None
        jacobian = self.raw_lengthscale.jacobian.reshape(-1)
        factor = jacobian / self.lengthscale.detach().double().reshape(-1)
        if jacobian.numel() == 1:
            per_input = per_input.sum(0, keepdim=True)
        return per_input * factor.reshape(-1, *([1] * (per_input.ndim - 1)))

    def extended(self, x_new: Tensor) -> KernelForm:
        x = torch.cat([self.x, self.select(x_new)])
        return Stationary(self.formula, x, self.lengthscale, self.raw_lengthscale, self.select, self.dtype)

    def taken(self, index: Tensor) -> KernelForm:
        result = copy(self)  # of the same centre: its entries are the same to the last bit
        result.size, result.x, result.z = index.numel(), self.x[index], self.z[index]
        result._z = result.z.detach()
        return result

    def widened(self) -> KernelForm | None:
        x, wide = self.x, torch.float64
        return Stationary(self.formula, x, self.lengthscale, self.raw_lengthscale, self.select, wide)


def add_rows(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """total[index_i] += rows_i, in an order that is always the same."""
    if total.is_cuda:  # index_add_ adds in any order there; this one sorts
        total.index_put_((index,), rows, accumulate=True)
    else:
        total.index_add_(0, index, rows)


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
        inputs: list[Tensor] = list(self._parameters)
        with torch.enable_grad():
            x = self.x.detach()
            if self.x.requires_grad:
                x.requires_grad_(True)
                inputs.append(x)
            value = self.evaluate(x[..., rows, :], x[..., cols, :]) if inputs else x
            if not value.requires_grad:
                return
            found = torch.autograd.grad(value, inputs, grad_outputs=weight.to(value.dtype), allow_unused=True)
        for total, gradient in zip(into, found, strict=True):
            if gradient is not None:
                total += gradient

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
        inputs: list[Tensor] = list(self._parameters)
        with torch.enable_grad():
            x = self.x.detach()
            if self.x.requires_grad:
                x.requires_grad_(True)
                inputs.append(x)
            if not inputs:
                return
            value = self._evaluate_batch(x, index)
            if value is None:
                return super().gathered_pullback(index, weight, into)
            if not value.requires_grad:
                return
            found = torch.autograd.grad(value, inputs, grad_outputs=weight.to(value.dtype), allow_unused=True)
        for total, gradient in zip(into, found, strict=True):
            if gradient is not None:
                total += gradient

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


class Scaled(KernelForm):
    """scale * K, the scale a positive scalar with its autograd history (an outputscale or a constant)."""

    def __init__(self, scale: Tensor, form: KernelForm, raw_scale: Raw | None = None) -> None:
        self.scale, self.form, self.raw_scale = scale.reshape(()), form, raw_scale
        self.size, self.dtype, self.device, self.closed = form.size, form.dtype, form.device, form.closed
        self._scale = float(scale.detach())

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.scale, *self.form.tensors)

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        own = () if self.raw_scale is None else (self.raw_scale.parameter,)
        return (*own, *self.form.hyperparameters)

    def block(self, rows: Index, cols: Index) -> Tensor:
        return self.form.block(rows, cols).mul_(self._scale)

    def diagonal(self) -> Tensor:
        return self.form.diagonal() * self._scale

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        self.pullbacks(rows, cols, [weight], [into], block)

    def pullbacks(
        self,
        rows: Index,
        cols: Index,
        weights: Sequence[Tensor],
        into: Sequence[Gradients],
        block: Tensor | None = None,
    ) -> None:
        inner = self.form.block(rows, cols) if block is None else block / self._scale
        for weight, gradients in zip(weights, into, strict=True):
            gradients[0] += torch.sum(weight * inner, dtype=torch.float64)
        scaled = [weight * self._scale for weight in weights]
        self.form.pullbacks(rows, cols, scaled, [gradients[1:] for gradients in into], inner)

    def gathered(self, index: Tensor) -> Tensor:
        return self.form.gathered(index).mul_(self._scale)

    def gathered_pullback(self, index: Tensor, weight: Tensor, into: Gradients, blocks: Tensor | None = None) -> None:
        inner = self.form.gathered(index) if blocks is None else blocks / self._scale
        into[0] += torch.sum(weight * inner, dtype=torch.float64)
        self.form.gathered_pullback(index, weight * self._scale, into[1:], inner)

    def gathered_with_pullback(self, index: Tensor) -> tuple[Tensor, Pullback]:
        inner, pull = self.form.gathered_with_pullback(index)

        def pullback(weight: Tensor, into: Gradients) -> None:
            into[0] += torch.sum(weight * inner, dtype=torch.float64)
            pull(weight * self._scale, into[1:])

        return inner * self._scale, pullback

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        if self.raw_scale is not None:
            jacobian = float(self.raw_scale.jacobian)
            tangent = self.form.block(rows, cols).mul_(jacobian)[None]
            yield self.raw_scale.parameter, self.raw_scale.among_all(tangent)
        for parameter, tangent in self.form.tangents(rows, cols):
            yield parameter, tangent * self._scale

    def derivatives(
        self, rows: Index, cols: Index, v: Tensor, block: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        inner = self.form.block(rows, cols) if block is None else block / self._scale
        yield from self.derivatives_from(inner, rows, cols, v)

    def derivatives_from(self, inner: Tensor, rows: Index, cols: Index, v: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The same, given the block of the unscaled kernel."""
        if self.raw_scale is not None:
            jacobian = float(self.raw_scale.jacobian)
            yield self.raw_scale.parameter, self.raw_scale.among_all((inner @ v).mul_(jacobian)[None])
        for parameter, product in self.form.derivatives(rows, cols, v, inner):
            yield parameter, product * self._scale

    def extended(self, x_new: Tensor) -> KernelForm:
        return Scaled(self.scale, self.form.extended(x_new), self.raw_scale)

    def taken(self, index: Tensor) -> KernelForm:
        return Scaled(self.scale, self.form.taken(index), self.raw_scale)

    def widened(self) -> KernelForm | None:
        form = self.form.widened()
        return None if form is None else Scaled(self.scale, form, self.raw_scale)


class _Composite(KernelForm):
    def __init__(self, forms: Sequence[KernelForm]) -> None:
        self.forms = tuple(forms)
        self.size, self.dtype, self.device = forms[0].size, forms[0].dtype, forms[0].device
        self.closed = all(form.closed for form in forms)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for form in self.forms for tensor in form.tensors)

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        return unique([parameter for form in self.forms for parameter in form.hyperparameters])

    def _parts(self, into: Gradients) -> Iterator[tuple[KernelForm, Gradients]]:
        start = 0
        for form in self.forms:
            stop = start + len(form.tensors)
            yield form, into[start:stop]
            start = stop

    def extended(self, x_new: Tensor) -> KernelForm:
        return type(self)([form.extended(x_new) for form in self.forms])

    def taken(self, index: Tensor) -> KernelForm:
        return type(self)([form.taken(index) for form in self.forms])

    def widened(self) -> KernelForm | None:
        forms = [form.widened() for form in self.forms]
        wide = [form for form in forms if form is not None]
        return type(self)(wide) if len(wide) == len(forms) else None


class Sum(_Composite):
    """K_1 + K_2 + ..."""

    def block(self, rows: Index, cols: Index) -> Tensor:
        total = self.forms[0].block(rows, cols)
        for form in self.forms[1:]:
            total += form.block(rows, cols)
        return total

    def diagonal(self) -> Tensor:
        return torch.stack([form.diagonal() for form in self.forms]).sum(0)

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        for form, part in self._parts(into):
            form.pullback(rows, cols, weight, part)

    def gathered(self, index: Tensor) -> Tensor:
        total = self.forms[0].gathered(index)
        for form in self.forms[1:]:
            total += form.gathered(index)
        return total

    def gathered_pullback(self, index: Tensor, weight: Tensor, into: Gradients, blocks: Tensor | None = None) -> None:
        for form, part in self._parts(into):
            form.gathered_pullback(index, weight, part)

    def gathered_with_pullback(self, index: Tensor) -> tuple[Tensor, Pullback]:
        found = [form.gathered_with_pullback(index) for form in self.forms]

        def pullback(weight: Tensor, into: Gradients) -> None:
            for (_, part), (_, pull) in zip(self._parts(into), found, strict=True):
                pull(weight, part)

        total = found[0][0].clone()
        for blocks, _ in found[1:]:
            total += blocks
        return total, pullback

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        for form in self.forms:
            yield from form.tangents(rows, cols)

    def derivatives(
        self, rows: Index, cols: Index, v: Tensor, block: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for form in self.forms:
            yield from form.derivatives(rows, cols, v)


class Product(_Composite):
    """K_1 * K_2 * ..., elementwise."""

    def block(self, rows: Index, cols: Index) -> Tensor:
        total = self.forms[0].block(rows, cols)
        for form in self.forms[1:]:
            total *= form.block(rows, cols)
        return total

    def diagonal(self) -> Tensor:
        return torch.stack([form.diagonal() for form in self.forms]).prod(0)

    def _others(self, blocks: list[Tensor], k: int) -> Tensor:
        return math.prod((b for i, b in enumerate(blocks) if i != k), start=torch.ones_like(blocks[k]))

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        blocks = [form.block(rows, cols) for form in self.forms]
        for k, (form, part) in enumerate(self._parts(into)):
            form.pullback(rows, cols, weight * self._others(blocks, k), part, blocks[k])

    def gathered(self, index: Tensor) -> Tensor:
        total = self.forms[0].gathered(index)
        for form in self.forms[1:]:
            total *= form.gathered(index)
        return total

    def gathered_pullback(self, index: Tensor, weight: Tensor, into: Gradients, blocks: Tensor | None = None) -> None:
        factors = [form.gathered(index) for form in self.forms]
        for k, (form, part) in enumerate(self._parts(into)):
            form.gathered_pullback(index, weight * self._others(factors, k), part, factors[k])

    def gathered_with_pullback(self, index: Tensor) -> tuple[Tensor, Pullback]:
        found = [form.gathered_with_pullback(index) for form in self.forms]
        factors = [blocks for blocks, _ in found]

        def pullback(weight: Tensor, into: Gradients) -> None:
            for k, ((_, part), (_, pull)) in enumerate(zip(self._parts(into), found, strict=True)):
                pull(weight * self._others(factors, k), part)

        return math.prod(factors[1:], start=factors[0].clone()), pullback

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        blocks = [form.block(rows, cols) for form in self.forms]
        for k, form in enumerate(self.forms):
            others = self._others(blocks, k)
            for parameter, tangent in form.tangents(rows, cols):
                yield parameter, tangent * others
