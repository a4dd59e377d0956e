"""What every kernel operator offers: the narrow waist between kernels and solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rtgp._kernels.form import KernelForm
from rtgp.errors import InputError


@runtime_checkable
class KernelOperator(Protocol):
    """K(X, X) without the noise, n x n, symmetric: what every kernel operator offers.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> K = operators.make(gpytorch.kernels.RBFKernel(), torch.linspace(0, 1, 5)[:, None])
    >>> isinstance(K, operators.KernelOperator)
    True
    >>> K.diagonal().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    >>> K.rows(torch.tensor([0, 4])).shape
    torch.Size([2, 5])
    >>> K.cross(torch.zeros(3, 1)).shape
    (3, 5)
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the entries and the products."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the points are."""
        ...

    @property
    def form(self) -> KernelForm:
        """The kernel that it is made of."""
        ...

    @property
    def hyperparameters(self) -> tuple[Tensor, ...]:
        """The trainable kernel parameters, in the order of `derivative_matmul`."""
        ...

    def renew(self, form: KernelForm, least_noise: Tensor | float = 0.0) -> bool:
        """Become the operator of another kernel, in the same memory, where that can be done.

        What has been recorded of its products then holds for the new one.

        Parameters
        ----------
        form : KernelForm
            Another kernel or other hyperparameters, on as many points.
        least_noise : Tensor or float
            The smallest variance of the noise, beside which entries may be negligible.

        Returns
        -------
        bool
            Whether it was done.
        """
        ...

    def matmul(self, v: Tensor) -> Tensor:
        """K v, without autograd history.

        Parameters
        ----------
        v : Tensor
            Right-hand sides, (n, r).

        Returns
        -------
        Tensor
            The product, (n, r).
        """
        ...

    def scaled_matmul(self, v: Tensor, s: Tensor) -> Tensor:
        """S K S v + v, with S a diagonal matrix.

        Parameters
        ----------
        v : Tensor
            Right-hand sides, (n, r).
        s : Tensor
            The diagonal of S, (n,).

        Returns
        -------
        Tensor
            The product, (n, r).
        """
        ...

    def wide_matmul(self, v: Tensor) -> Tensor:
        """K v with sums in float64, for products whose terms cancel.

        Parameters
        ----------
        v : Tensor
            Right-hand sides, (n, r).

        Returns
        -------
        Tensor
            The product in float64, (n, r).
        """
        ...

    def bilinear(self, u: Tensor, v: Tensor) -> Tensor:
        """sum_r u_r^T K v_r, differentiable in the hyperparameters and inputs, not in u and v.

        Parameters
        ----------
        u, v : Tensor
            Vectors, (n, r) each.

        Returns
        -------
        Tensor
            A float64 scalar.
        """
        ...

    def bilinears(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """`bilinear` of every pair, in one pass over K where that is cheaper.

        Parameters
        ----------
        pairs : sequence of (Tensor, Tensor)
            The vectors, (n, r) each.

        Returns
        -------
        list of Tensor
            A float64 scalar for each pair.
        """
        ...

    def contract(self, weight: Callable[[slice, slice], Tensor]) -> Tensor:
        """sum_ij W_ij K_ij for a symmetric W, differentiable like `bilinear`.

        Parameters
        ----------
        weight : callable
            A function (rows, columns) -> that block of W.

        Returns
        -------
        Tensor
            A float64 scalar.
        """
        ...

    def diagonal(self) -> Tensor:
        """The diagonal of K.

        Returns
        -------
        Tensor
            (n,).
        """
        ...

    def rows(self, index: Tensor, columns: slice | Tensor | None = None) -> Tensor:
        """Some entries of K.

        Parameters
        ----------
        index : Tensor
            The rows, (k,).
        columns : slice or Tensor, optional
            The columns. By default all.

        Returns
        -------
        Tensor
            K[index, columns], (k, m).
        """
        ...

    def derivative_matmul(self, v: Tensor) -> Tensor:
        """dK/da v for every element a of the hyperparameters.

        Parameters
        ----------
        v : Tensor
            Right-hand sides, (n, r).

        Returns
        -------
        Tensor
            (p, n, r).
        """
        ...

    def cross(self, x_new: Tensor) -> CrossOperator:
        """K(x_new, X).

        Parameters
        ----------
        x_new : Tensor
            New points, (m, d).

        Returns
        -------
        CrossOperator
            An operator of shape (m, n).
        """
        ...

    def cross_of(self, joint: KernelForm) -> CrossOperator:
        """K(x_new, X), from a kernel that has been read already.

        Parameters
        ----------
        joint : KernelForm
            The same kernel on X followed by x_new.

        Returns
        -------
        CrossOperator
            An operator of shape (m, n).
        """
        ...


class CrossOperator:
    """K(x_new, X), m x n, evaluated block by block.

    Parameters
    ----------
    form : KernelForm
        The kernel on all points.
    rows, cols : slice
        Which of them are x_new, and which X.
    tile : int
        Rows and columns of a block.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> K = operators.make(gpytorch.kernels.RBFKernel(), torch.linspace(0, 1, 5)[:, None])
    >>> cross = K.cross(torch.zeros(3, 1))
    >>> cross.matmul(torch.ones(5, 2)).shape, cross.transposed_matmul(torch.ones(3, 2)).shape
    (torch.Size([3, 2]), torch.Size([5, 2]))
    >>> cross.to_dense().shape
    torch.Size([3, 5])
    """

    def __init__(self, form: KernelForm, rows: slice, cols: slice, tile: int) -> None:
        self._form, self._rows, self._cols, self._tile = form, rows, cols, tile
        self.shape = (rows.stop - rows.start, cols.stop - cols.start)
        self.dtype, self.device = form.dtype, form.device

    def matmul(self, v: Tensor) -> Tensor:
        """K(x_new, X) v.

        Parameters
        ----------
        v : Tensor
            Right-hand sides, (n, r).

        Returns
        -------
        Tensor
            The product, (m, r).
        """
        v = columns(v, self.shape[1])
        result = v.new_zeros(self.shape[0], v.shape[1])
        for rows in tiles(self._rows, self._tile):
            for cols in tiles(self._cols, self._tile):
                part = self._form.block(rows, cols) @ v[_shifted(cols, self._cols)]
                result[_shifted(rows, self._rows)] += part
        return result

    def transposed_matmul(self, v: Tensor) -> Tensor:
        """K(X, x_new) v.

        Parameters
        ----------
        v : Tensor
            Right-hand sides, (m, r).

        Returns
        -------
        Tensor
            The product, (n, r).
        """
        v = columns(v, self.shape[0])
        result = v.new_zeros(self.shape[1], v.shape[1])
        for rows in tiles(self._rows, self._tile):
            for cols in tiles(self._cols, self._tile):
                part = self._form.block(rows, cols).T @ v[_shifted(rows, self._rows)]
                result[_shifted(cols, self._cols)] += part
        return result

    def to_dense(self) -> Tensor:
        """All entries.

        Returns
        -------
        Tensor
            (m, n).
        """
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
    """A value with given gradients, as if autograd had computed it.

    Parameters
    ----------
    value : Tensor
        The value, a scalar.
    tensors : sequence of Tensor
        What it depends on.
    gradients : sequence of Tensor
        Its gradient with respect to each.

    Returns
    -------
    Tensor
        The value, differentiable.

    Examples
    --------
    >>> import torch
    >>> from rtgp.operators import attach_gradients
    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> y = attach_gradients(torch.tensor(9.0), [x], [torch.tensor(6.0)])
    >>> y.backward()
    >>> y.item(), x.grad.item()
    (9.0, 6.0)
    """
    linear = value.new_zeros(())
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if tensor.requires_grad:
            linear = linear + (tensor * gradient.to(tensor.dtype)).sum().to(value.dtype)
    return value.detach() + (linear - linear.detach())
