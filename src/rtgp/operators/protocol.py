"""What every kernel operator offers: the narrow waist between kernels and solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rtgp.errors import InputError
from rtgp.kernels.forms import KernelForm


@runtime_checkable
class KernelOperator(Protocol):
    """K(X, X) without the noise, n x n, symmetric."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def form(self) -> KernelForm:
        """The kernel that it is made of."""
        ...

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        """The trainable kernel parameters, in the order of `derivative_matmul`."""
        ...

    def renew(self, form: KernelForm) -> bool:
        """Become the operator of another form of the same size, in the same memory, and say whether that was done:
        what has been recorded of its products then holds for the new one."""
        ...

    def matmul(self, v: Tensor) -> Tensor:
        """K v, (n, r) -> (n, r), without autograd history."""
        ...

    def whitened_matmul(self, v: Tensor, s: Tensor) -> Tensor:
        """S K S v + v with S the diagonal matrix of s (n,), (n, r) -> (n, r)."""
        ...

    def wide_matmul(self, v: Tensor) -> Tensor:
        """K v with sums in float64, (n, r) -> (n, r) float64: for products whose terms cancel."""
        ...

    def bilinear(self, u: Tensor, v: Tensor) -> Tensor:
        """sum_r u_r^T K v_r as a float64 scalar, differentiable in the hyperparameters and inputs (not in u, v)."""
        ...

    def bilinears(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """`bilinear` of every pair, in one pass over K where that is cheaper."""
        ...

    def contract(self, weight: Callable[[slice, slice], Tensor]) -> Tensor:
        """sum_ij W_ij K_ij for a symmetric W given by its blocks, differentiable like `bilinear`."""
        ...

    def diagonal(self) -> Tensor:
        """The diagonal of K, (n,)."""
        ...

    def rows(self, index: Tensor, columns: slice | Tensor | None = None) -> Tensor:
        """K[index, columns], (k, m); all n columns by default."""
        ...

    def derivative_matmul(self, v: Tensor) -> Tensor:
        """dK/da v for every element a of the hyperparameters, (p, n, r)."""
        ...

    def cross(self, x_new: Tensor) -> CrossOperator:
        """K(x_new, X)."""
        ...


class CrossOperator:
    """K(x_new, X), m x n, evaluated block by block."""

    def __init__(self, form: KernelForm, rows: slice, cols: slice, tile: int) -> None:
        self._form, self._rows, self._cols, self._tile = form, rows, cols, tile
        self.shape = (rows.stop - rows.start, cols.stop - cols.start)
        self.dtype, self.device = form.dtype, form.device

    def matmul(self, v: Tensor) -> Tensor:
        """K(x_new, X) v, (n, r) -> (m, r)."""
        v = columns(v, self.shape[1])
        result = v.new_zeros(self.shape[0], v.shape[1])
        for rows in tiles(self._rows, self._tile):
            for cols in tiles(self._cols, self._tile):
                part = self._form.block(rows, cols) @ v[_shifted(cols, self._cols)]
                result[_shifted(rows, self._rows)] += part
        return result

    def transposed_matmul(self, v: Tensor) -> Tensor:
        """K(X, x_new) v, (m, r) -> (n, r)."""
        v = columns(v, self.shape[0])
        result = v.new_zeros(self.shape[1], v.shape[1])
        for rows in tiles(self._rows, self._tile):
            for cols in tiles(self._cols, self._tile):
                part = self._form.block(rows, cols).T @ v[_shifted(rows, self._rows)]
                result[_shifted(cols, self._cols)] += part
        return result

    def to_dense(self) -> Tensor:
        return self._form.block(self._rows, self._cols)


def columns(v: Tensor, n: int) -> Tensor:
    """v (n, r) without its autograd history: products are values, gradients come from `bilinear` alone."""
    if v.ndim != 2 or v.shape[0] != n:
        raise InputError(f"Expected right-hand sides of shape ({n}, r). Got shape {tuple(v.shape)}.")
    return v.detach()


def tiles(within: slice, size: int) -> list[slice]:
    """The range [within.start, within.stop) in pieces of at most `size`."""
    starts = range(within.start, within.stop, size)
    return [slice(start, min(start + size, within.stop)) for start in starts]


def _shifted(piece: slice, origin: slice) -> slice:
    return slice(piece.start - origin.start, piece.stop - origin.start)


def attach_gradients(value: Tensor, tensors: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """`value` with the given gradients with respect to `tensors`, as if autograd had computed it from them."""
    linear = value.new_zeros(())
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if tensor.requires_grad:
            linear = linear + (tensor * gradient.to(tensor.dtype)).sum().to(value.dtype)
    return value.detach() + (linear - linear.detach())
