"""Scaled forms, sums and products of forms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rtgp._kernels.form import Gradients, Index, KernelForm, Pullback, unique
from rtgp._kernels.raw import Raw


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
