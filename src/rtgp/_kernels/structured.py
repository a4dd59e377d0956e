"""Covariances that come as a `LinearOperator`, which multiplies faster than its entries could be read.

A `LinearOperator` is a tree of operations over a few tensors. Those carry the autograd history: the form rebuilds the
tree over copies of them, multiplies, and lets autograd find the gradient with respect to the copies. No tape holds more
than one product.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from rtgp._kernels.composites import Scaled, Sum
from rtgp._kernels.form import Gradients, Index, KernelForm
from rtgp._kernels.positions import At, Diagonal, needs_its_model


class Structured(KernelForm):
    """K by the products of an operator: interpolation from a grid, Toeplitz, Kronecker, and sums of such."""

    words = "a structured covariance"
    closed = False
    hyperparameters: tuple[Tensor, ...] = ()

    def __init__(self, operator: LinearOperator) -> None:
        self._tree, self._parts = operator.representation_tree(), operator.representation()
        self.size, self.dtype, self.device = operator.shape[-1], operator.dtype, operator.device
        self._plain = self._rebuilt([part.detach() for part in self._parts])

    def _rebuilt(self, parts: list[Tensor]) -> LinearOperator:
        return self._tree(*parts)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(part for part in self._parts if part.requires_grad)

    def product(self, v: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """K v without history, (n, r) -> (n, r), in `dtype`, its own by default."""
        operator = self._plain
        if dtype is not None and dtype != self.dtype:
            operator = self._rebuilt([p.detach().to(dtype) if p.is_floating_point() else p for p in self._parts])
        with torch.no_grad():
            product: Tensor = operator @ v.to(operator.dtype)
        return product

    def product_pullback(self, u: Tensor, v: Tensor, into: Gradients) -> None:
        """Adds the gradient of sum(u * (K v)) to `into`."""
        if not into:
            return
        with torch.enable_grad():
            copies = [part.detach().requires_grad_(part.requires_grad) for part in self._parts]
            inputs = [copy for copy in copies if copy.requires_grad]
            total = (u.to(self.dtype) * (self._rebuilt(copies) @ v.to(self.dtype))).sum()
            found = torch.autograd.grad(total, inputs, allow_unused=True)
        for gradient, own in zip(into, found, strict=True):
            if own is not None:
                gradient += own

    def _units(self, index: Index) -> Tensor:
        """The columns of the identity at these positions, (n, k)."""
        positions = torch.arange(self.size, device=self.device)[index]
        units = torch.zeros(self.size, len(positions), dtype=self.dtype, device=self.device)
        units[positions, torch.arange(len(positions), device=self.device)] = 1.0
        return units

    def block(self, rows: Index, cols: Index) -> Tensor:
        return self.product(self._units(cols))[rows].clone()

    def diagonal(self) -> Tensor:
        with torch.no_grad():
            diagonal: Tensor = self._plain.diagonal(dim1=-1, dim2=-2)
        return diagonal.clone()

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        left = torch.zeros(self.size, weight.shape[1], dtype=weight.dtype, device=self.device)
        left[rows] = weight
        self.product_pullback(left, self._units(cols), into)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()

    def taken(self, index: Tensor) -> KernelForm:
        return At(self, index)

    def extended(self, x_new: Tensor) -> KernelForm:
        raise needs_its_model()

    def widened(self) -> KernelForm | None:
        return self if self.dtype == torch.float64 else None


class LowRank(KernelForm):
    """R R^T for a root R (n, m) with its autograd history."""

    words = "a covariance of low rank"
    closed = True
    hyperparameters: tuple[Tensor, ...] = ()

    def __init__(self, root: Tensor) -> None:
        self.root, self._root = root, root.detach()
        self.size, self.dtype, self.device = len(root), root.dtype, root.device

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.root,) if self.root.requires_grad else ()

    def product(self, v: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        root = self._root if dtype is None else self._root.to(dtype)
        return root @ (root.T @ v.to(root.dtype))

    def product_pullback(self, u: Tensor, v: Tensor, into: Gradients) -> None:
        if into:  # sum u^T R R^T v
            u, v, root = u.double(), v.double(), self._root.double()
            into[0] += u @ (v.T @ root) + v @ (u.T @ root)

    def block(self, rows: Index, cols: Index) -> Tensor:
        return self._root[rows] @ self._root[cols].T

    def diagonal(self) -> Tensor:
        return self._root.square().sum(1)

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        if into:
            place, root, w = torch.arange(self.size, device=self.device), self._root.double(), weight.double()
            into[0].index_add_(0, place[rows], w @ root[cols])
            into[0].index_add_(0, place[cols], w.T @ root[rows])

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()

    def taken(self, index: Tensor) -> KernelForm:
        return LowRank(self.root[index])

    def extended(self, x_new: Tensor) -> KernelForm:
        raise needs_its_model()

    def widened(self) -> KernelForm | None:
        return self if self.dtype == torch.float64 else None


class Evaluated(KernelForm):
    """A matrix (n, n) that the model's forward has evaluated, with its autograd history."""

    words = "a covariance that is evaluated already"
    closed = True
    hyperparameters: tuple[Tensor, ...] = ()

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self._matrix = matrix, matrix.detach()
        self.size, self.dtype, self.device = len(matrix), matrix.dtype, matrix.device

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.matrix,) if self.matrix.requires_grad else ()

    def block(self, rows: Index, cols: Index) -> Tensor:
        return self._matrix[rows][:, cols].clone()

    def diagonal(self) -> Tensor:
        return self._matrix.diagonal().clone()

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        if into:
            place = torch.arange(self.size, device=self.device)
            into[0].index_put_((place[rows][:, None], place[cols]), weight.to(into[0].dtype), accumulate=True)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()

    def taken(self, index: Tensor) -> KernelForm:
        return Evaluated(self.matrix[index][:, index])

    def extended(self, x_new: Tensor) -> KernelForm:
        raise needs_its_model()

    def widened(self) -> KernelForm | None:
        return self if self.dtype == torch.float64 else None


# Products of whole forms.


def is_structured(form: KernelForm) -> bool:
    """Whether its products are fast without its entries."""
    if isinstance(form, Scaled):
        return is_structured(form.form)
    if isinstance(form, Sum):  # a diagonal alone is no reason
        return all(isinstance(part, Diagonal) or is_structured(part) for part in form.forms) and any(
            is_structured(part) for part in form.forms
        )
    return isinstance(form, (Structured, LowRank))


def product(form: KernelForm, v: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """K v of a form that is structured, in `dtype`, its own by default."""
    if isinstance(form, Scaled):
        return product(form.form, v, dtype) * float(form.scale.detach())
    if isinstance(form, Sum):
        return torch.stack([product(part, v, dtype) for part in form.forms]).sum(0)
    if isinstance(form, Diagonal):
        wide = v if dtype is None else v.to(dtype)
        return wide * form.values.detach().to(wide.dtype)[:, None]
    assert isinstance(form, (Structured, LowRank))
    return form.product(v, dtype)


def product_pullback(form: KernelForm, u: Tensor, v: Tensor, into: Gradients) -> None:
    """Adds the gradient of sum(u * (K v)) to `into`."""
    if isinstance(form, Scaled):
        into[0] += (u * product(form.form, v)).sum(dtype=torch.float64)
        product_pullback(form.form, u, v * float(form.scale.detach()), into[1:])
    elif isinstance(form, Sum):
        start = 0
        for part in form.forms:
            stop = start + len(part.tensors)
            product_pullback(part, u, v, into[start:stop])
            start = stop
    elif isinstance(form, Diagonal):
        if into:
            into[0] += (u.double() * v.double()).sum(1)
    else:
        assert isinstance(form, (Structured, LowRank))
        form.product_pullback(u, v, into)
