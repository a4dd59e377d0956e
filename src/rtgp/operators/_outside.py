"""Matrices that are no tensors: SciPy's sparse ones and its `LinearOperator`, seen through their products."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtgp.errors import InputError

_KEPT = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


class Outside:
    """A square matrix of SciPy on the CPU. Integers become float64.

    has_rows: whether rows and the diagonal can be read, as of a sparse matrix and not of a LinearOperator.
    """

    def __init__(self, matrix: Any) -> None:
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
            raise InputError(f"Expected a square matrix, (n, n). Got shape {tuple(matrix.shape)}: pass one at a time.")
        self.has_rows = _is_sparse(matrix)
        self._dtype = np.dtype(matrix.dtype) if matrix.dtype is not None else np.dtype(np.float64)
        if self._dtype.kind not in "biuf":
            raise InputError(f"Expected a matrix of real numbers. Got {self._dtype}: convert it first.")
        if self._dtype not in _KEPT:
            self._dtype = np.dtype(np.float64)
            matrix = matrix.astype(self._dtype) if self.has_rows else matrix
        self.size: int = matrix.shape[0]
        self.dtype = _KEPT[self._dtype]
        self._matrix = matrix.tocsr() if self.has_rows else matrix

    def product(self, v: Tensor) -> Tensor:
        """A v for v (n, r)."""
        made = np.asarray(self._matrix @ v.detach().cpu().numpy(), dtype=self._dtype)
        return torch.from_numpy(np.ascontiguousarray(made))

    def rows(self, index: Tensor) -> Tensor:
        """Some rows, (k, n), in float64."""
        return torch.from_numpy(self._matrix[index.cpu().numpy()].toarray()).double()

    def diagonal(self) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._matrix.diagonal()))

    def largest(self) -> tuple[float, float]:
        """The largest |A| and the largest |A - A^T|, where entries can be read; NaN where one of them is none."""
        values = self._matrix.data
        if not np.isfinite(values).all():
            return float("nan"), float("nan")
        if values.size == 0:
            return 0.0, 0.0
        return float(np.abs(values).max()), float(abs(self._matrix - self._matrix.T).max())


def from_outside(A: Any) -> Any:
    """NumPy's arrays as tensors and SciPy's matrices as `Outside`; all else as it is."""
    if _is_sparse(A) or _is_operator(A):
        return Outside(A)
    if isinstance(A, np.ndarray):
        return tensor_of(A, "A")
    return A


# SciPy takes its time to load. Who has a matrix of it has loaded it.


def _is_sparse(A: Any) -> bool:
    sparse: Any = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(A))


def _is_operator(A: Any) -> bool:
    linalg: Any = sys.modules.get("scipy.sparse.linalg")
    return linalg is not None and isinstance(A, linalg.LinearOperator)


def tensor_of(values: np.ndarray[Any, Any], name: str) -> Tensor:
    """A copy as a tensor: float32 and float64 stay, other numbers become float64."""
    try:
        array = values if values.dtype in _KEPT else values.astype(np.float64, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Expected {name} as an array of real numbers. Got an array of {values.dtype}: convert it first."
        ) from error
    return torch.tensor(array)
