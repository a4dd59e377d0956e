"""Covariances of several observations of one point: a kernel at positions, and small matrices between tasks.

With i_r the point and a_r the task of row r, a multitask covariance is the product of `At(form, i)` and `Table(B, a)`,
K_rc = k(x_i_r, x_i_c) B_a_r_a_c: no Kronecker product is ever formed. Targets that are missing are rows left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rtgp._kernels.form import Gradients, Index, KernelForm
from rtgp.errors import UnsupportedModelError


def leaves_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """The trainable tensors that it is a function of, by its autograd history, each once."""
    if tensor.grad_fn is None:
        return (tensor,) if tensor.requires_grad else ()
    found: dict[int, Tensor] = {}
    nodes, seen = [tensor.grad_fn], {tensor.grad_fn}
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return tuple(found.values())


def jacobians(tensor: Tensor, leaves: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """(leaf, d tensor / d each of its entries, (numel, *shape of the tensor)).

    The reverse pass is linear in its cotangent w; differentiating it in w gives the forward derivative.
    """
    w = torch.zeros_like(tensor, requires_grad=True)
    with torch.enable_grad():
        found = torch.autograd.grad(tensor, list(leaves), w, create_graph=True, allow_unused=True)
    for leaf, gradient in zip(leaves, found, strict=True):
        if gradient is not None:
            yield leaf, torch.stack([torch.autograd.grad(g, w, retain_graph=True)[0] for g in gradient.reshape(-1)])


class At(KernelForm):
    """K_rc = form[index_r, index_c]: another kernel at positions that may repeat and may leave some out."""

    words = "a kernel of several tasks, or with missing targets"

    def __init__(self, form: KernelForm, index: Tensor) -> None:
        self.form, self.index = form, index.to(form.device)
        self.size, self.dtype, self.device, self.closed = len(index), form.dtype, form.device, form.closed

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.form.tensors

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        return self.form.hyperparameters

    def _distinct(self, rows: Index) -> tuple[Tensor, Tensor]:
        """The positions that the rows have, each once, and the place of each row's among them."""
        positions: tuple[Tensor, Tensor] = torch.unique(self.index[rows], return_inverse=True)
        return positions

    def block(self, rows: Index, cols: Index) -> Tensor:
        (r, of_rows), (c, of_cols) = self._distinct(rows), self._distinct(cols)
        return self.form.block(r, c)[of_rows][:, of_cols]

    def diagonal(self) -> Tensor:
        return self.form.diagonal()[self.index]

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        (r, of_rows), (c, of_cols) = self._distinct(rows), self._distinct(cols)
        by_rows = weight.new_zeros(len(r), weight.shape[1]).index_add_(0, of_rows, weight)
        folded = weight.new_zeros(len(r), len(c)).index_add_(1, of_cols, by_rows)
        self.form.pullback(r, c, folded, into)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        (r, of_rows), (c, of_cols) = self._distinct(rows), self._distinct(cols)
        for parameter, tangent in self.form.tangents(r, c):
            yield parameter, tangent[:, of_rows][:, :, of_cols]

    def derivatives(
        self, rows: Index, cols: Index, v: Tensor, block: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        (r, of_rows), (c, of_cols) = self._distinct(rows), self._distinct(cols)
        folded = v.new_zeros(len(c), v.shape[1]).index_add_(0, of_cols, v)
        for parameter, product in self.form.derivatives(r, c, folded):
            yield parameter, product[:, of_rows]

    def taken(self, index: Tensor) -> KernelForm:
        return At(self.form, self.index[index])

    def extended(self, x_new: Tensor) -> KernelForm:
        joint = self.form.extended(x_new)
        new = torch.arange(self.form.size, joint.size, device=self.device)
        return At(joint, torch.cat([self.index, new]))

    def widened(self) -> KernelForm | None:
        form = self.form.widened()
        return None if form is None else At(form, self.index)


class Table(KernelForm):
    """K_rc = matrix[index_r, index_c] for a matrix (t, t) with its autograd history: a covariance between tasks."""

    words = "a covariance between tasks"
    closed = True

    def __init__(self, matrix: Tensor, index: Tensor, dtype: torch.dtype) -> None:
        self.matrix, self.index = matrix, index.to(matrix.device)
        self.size, self.dtype, self.device = len(index), dtype, matrix.device
        self._matrix = matrix.detach().to(dtype)
        self._leaves: tuple[Tensor, ...] | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.matrix,) if self.matrix.requires_grad else ()

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        if self._leaves is None:
            self._leaves = leaves_of(self.matrix)
        return self._leaves

    def block(self, rows: Index, cols: Index) -> Tensor:
        return self._matrix[self.index[rows]][:, self.index[cols]]

    def diagonal(self) -> Tensor:
        return self._matrix.diagonal()[self.index]

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        if into:
            t = len(self.matrix)
            by_rows = into[0].new_zeros(t, weight.shape[1]).index_add_(0, self.index[rows], weight.double())
            into[0].index_add_(1, self.index[cols], by_rows)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        if self.tensors:
            for leaf, jacobian in jacobians(self.matrix, self.hyperparameters):
                yield leaf, jacobian.to(self.dtype)[:, self.index[rows]][:, :, self.index[cols]]

    def taken(self, index: Tensor) -> KernelForm:
        return Table(self.matrix, self.index[index], self.dtype)

    def extended(self, x_new: Tensor) -> KernelForm:
        raise needs_its_model()

    def widened(self) -> KernelForm | None:
        return self if self.dtype == torch.float64 else Table(self.matrix, self.index, torch.float64)


class Same(KernelForm):
    """K_rc = 1 where index_r = index_c, and 0 elsewhere."""

    words = "noise between tasks"
    closed = True
    tensors: tuple[Tensor, ...] = ()
    hyperparameters: tuple[Tensor, ...] = ()

    def __init__(self, index: Tensor, dtype: torch.dtype) -> None:
        self.index, self.size, self.dtype, self.device = index, len(index), dtype, index.device

    def block(self, rows: Index, cols: Index) -> Tensor:
        return (self.index[rows][:, None] == self.index[cols]).to(self.dtype)

    def diagonal(self) -> Tensor:
        return torch.ones(self.size, dtype=self.dtype, device=self.device)

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        pass

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()

    def taken(self, index: Tensor) -> KernelForm:
        return Same(self.index[index], self.dtype)

    def extended(self, x_new: Tensor) -> KernelForm:
        raise needs_its_model()

    def widened(self) -> KernelForm | None:
        return self if self.dtype == torch.float64 else Same(self.index, torch.float64)


class Diagonal(KernelForm):
    """A diagonal matrix of values (n,) with their autograd history: jitter, or a correction of an approximation."""

    words = "a diagonal matrix"
    closed = True
    hyperparameters: tuple[Tensor, ...] = ()

    def __init__(self, values: Tensor, dtype: torch.dtype) -> None:
        self.values, self.size, self.dtype, self.device = values, len(values), dtype, values.device
        self._place = torch.arange(self.size, device=self.device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.values,) if self.values.requires_grad else ()

    def _hits(self, rows: Index, cols: Index) -> Tensor:
        return self._place[rows][:, None] == self._place[cols]

    def block(self, rows: Index, cols: Index) -> Tensor:
        return self._hits(rows, cols).to(self.dtype) * self.diagonal()[rows][:, None]

    def diagonal(self) -> Tensor:
        return self.values.detach().to(self.dtype)

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        if into:
            own = (weight * self._hits(rows, cols)).sum(1).to(into[0].dtype)
            into[0].index_add_(0, self._place[rows], own)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()

    def taken(self, index: Tensor) -> KernelForm:
        return At(self, index)

    def extended(self, x_new: Tensor) -> KernelForm:
        raise needs_its_model()

    def widened(self) -> KernelForm | None:
        return self if self.dtype == torch.float64 else Diagonal(self.values, torch.float64)


class Blocks(KernelForm):
    """K_rc = forms[which_r][place_r, place_c] where which_r = which_c, and 0 elsewhere: independent parts."""

    words = "independent outputs"

    def __init__(self, forms: Sequence[KernelForm], which: Tensor, place: Tensor) -> None:
        self.forms, self.device, self.dtype = tuple(forms), forms[0].device, forms[0].dtype
        self.which, self.place = which.to(self.device), place.to(self.device)
        self.size, self.closed = len(which), all(form.closed for form in forms)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for form in self.forms for tensor in form.tensors)

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        return tuple({id(p): p for form in self.forms for p in form.hyperparameters}.values())

    def _parts(self, rows: Index, cols: Index) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor]]:
        """(part, its rows in the block, its columns there, their places in it)."""
        by_row, by_col, at_row, at_col = self.which[rows], self.which[cols], self.place[rows], self.place[cols]
        for part in range(len(self.forms)):
            r, c = (by_row == part).nonzero()[:, 0], (by_col == part).nonzero()[:, 0]
            if len(r) and len(c):
                yield part, r, c, at_row[r], at_col[c]

    def block(self, rows: Index, cols: Index) -> Tensor:
        shape = len(self.which[rows]), len(self.which[cols])
        block = torch.zeros(shape, dtype=self.dtype, device=self.device)
        for part, r, c, at_row, at_col in self._parts(rows, cols):
            block[r[:, None], c] = self.forms[part].block(at_row, at_col)
        return block

    def diagonal(self) -> Tensor:
        diagonal = torch.zeros(self.size, dtype=self.dtype, device=self.device)
        for part, form in enumerate(self.forms):
            own = self.which == part
            diagonal[own] = form.diagonal()[self.place[own]]
        return diagonal

    def pullback(self, rows: Index, cols: Index, weight: Tensor, into: Gradients, block: Tensor | None = None) -> None:
        starts = [0]
        for form in self.forms:
            starts.append(starts[-1] + len(form.tensors))
        for part, r, c, at_row, at_col in self._parts(rows, cols):
            own = into[starts[part] : starts[part + 1]]
            self.forms[part].pullback(at_row, at_col, weight[r[:, None], c], own)

    def tangents(self, rows: Index, cols: Index) -> Iterator[tuple[Tensor, Tensor]]:
        shape = len(self.which[rows]), len(self.which[cols])
        for part, r, c, at_row, at_col in self._parts(rows, cols):
            for parameter, tangent in self.forms[part].tangents(at_row, at_col):
                whole = tangent.new_zeros(len(tangent), *shape)
                whole[:, r[:, None], c] = tangent
                yield parameter, whole

    def taken(self, index: Tensor) -> KernelForm:
        return Blocks(self.forms, self.which[index], self.place[index])

    def extended(self, x_new: Tensor) -> KernelForm:
        raise needs_its_model()

    def widened(self) -> KernelForm | None:
        wide = [form.widened() for form in self.forms]
        known = [form for form in wide if form is not None]
        return Blocks(known, self.which, self.place) if len(known) == len(wide) else None


def needs_its_model() -> UnsupportedModelError:
    return UnsupportedModelError(
        "Expected a kernel of one value for each pair of points. Got a covariance between tasks, or one evaluated "
        "already, which does not tell what it is at new points: ask the model for it, as model(x) in eval mode does."
    )
