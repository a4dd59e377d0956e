"""P^-1 = G^T G with a sparse triangular G: neighbours as preconditioner, for rough, spatial or nearly noise-free data.

Order the points at random. Row i of G is the last row of the inverse Cholesky factor of A on point i and its nearest
earlier points (Vecchia; a factorised sparse approximate inverse). G A G^T has a unit diagonal, and G^T G = A^-1 where
every point knows all earlier ones.

G is replicated where there are many ranks: n (m + 1) numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._preconditioners.nearest import nearest_earlier
from rtgp._preconditioners.protocol import Preconditioner
from rtgp._preconditioners.sparse_factor import inverse_factor_rows, is_missing
from rtgp._solvers import NoiseUnits
from rtgp._state import saved_tensor


class SparseInverse(Preconditioner):
    """P = (G^T G)^-1, F^-1 = G.

    index (n, m + 1): the points of each row, the point itself last. values (n, m + 1) float64: G at them. Both on the
    device of the data.
    """

    rank = 0

    def __init__(self, index: Tensor, values: Tensor, dtype: torch.dtype) -> None:
        self.index, self.values = index.contiguous(), values.contiguous()
        self.size, self.neighbours = index.shape[0], index.shape[1] - 1
        self._logdet = -2.0 * values[:, -1].log().sum().cpu()
        self._products = {t: _Products(self.index, self.values.to(t)) for t in {torch.float64, dtype}}

    @classmethod
    def of(cls, form: KernelForm, noise: Tensor, neighbours: Tensor, dtype: torch.dtype) -> SparseInverse:
        """For A = S K S + I. neighbours (n, m): the earlier points of each point, -1 where there are fewer."""
        return cls(*inverse_factor_rows(form, noise.rsqrt(), neighbours), dtype)

    def whiten(self, v: Tensor) -> Tensor:
        return self._products[v.dtype].matmul(v)

    def whiten_transpose(self, v: Tensor) -> Tensor:
        return self._products[v.dtype].transposed_matmul(v)

    def logdet(self) -> Tensor:
        return self._logdet

    def earlier(self) -> Tensor:
        """(n, m): the neighbours of each point, -1 where there are fewer."""
        return torch.where(is_missing(self.index), -1, self.index)[:, :-1]

    def inverse_diagonal(self) -> Tensor:
        squares = self.values.square().reshape(-1)
        return torch.zeros(self.size, dtype=torch.float64, device=squares.device).index_add_(
            0, self.index.reshape(-1), squares
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {"neighbours_index": self.index, "neighbours_values": self.values}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], dtype: torch.dtype, size: int | None = None) -> SparseInverse:
        """Read it back, for n = `size` points where that is known.

        What is no such factor is refused: its determinant would be another.
        """
        index = saved_tensor(state, "neighbours_index", (size, None), torch.int64, (0, math.inf))
        n, width = index.shape
        values = saved_tensor(state, "neighbours_values", (n, width))
        itself = torch.arange(n, device=index.device)
        if width < 1 or int(index.max()) >= n or not torch.equal(index[:, -1], itself):
            raise ValueError(f"'neighbours_index' must hold points below {n}, each row's own point last.")
        if not bool((values[:, -1] > 0.0).all()):
            raise ValueError("The diagonal in 'neighbours_values' must be positive.")
        missing = is_missing(index)
        if bool((values[missing] != 0.0).any()):
            raise ValueError("'neighbours_values' must be 0 where a point stands for a neighbour that is not there.")
        found = cls(index, values, dtype)
        check_earlier(found.earlier(), "neighbours_index")
        return found


def check_earlier(neighbours: Tensor, name: str) -> None:
    """Refuse neighbours (n, m), -1 for none, that are not different points before their own in some order.

    G would have another determinant than its diagonal tells.
    """
    n, m = neighbours.shape
    ascending = neighbours.sort(dim=1).values
    if bool(((ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] >= 0)).any()):
        raise ValueError(f"'{name}' must name different points in each row. Got one twice.")
    rows = torch.arange(n, device=neighbours.device)[:, None].expand(n, m)[neighbours >= 0].cpu().numpy()
    columns = neighbours[neighbours >= 0].cpu().numpy()
    from scipy.sparse import csr_array  # slow to load
    from scipy.sparse.csgraph import connected_components

    graph = csr_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(n, n))
    parts, _ = connected_components(graph, directed=True, connection="strong")
    if parts < n or bool((rows == columns).any()):
        raise ValueError(f"'{name}' must name points that come before each row's own in one order. Got a circle.")


def random_order(n: int, generator: torch.Generator) -> Tensor:
    """(n,): a random permutation, which spreads the early points over the data. It is near enough to the best order."""
    return torch.randperm(n, generator=generator)


def neighbours_of(system: NoiseUnits, count: int, generator: torch.Generator) -> Tensor:
    """(n, count): the nearest earlier points of each point in a random order, nearest first."""
    return nearest_earlier(system.operator.form, random_order(system.size, generator).to(system.device), count)


class _Products:
    """G v and G^T v, both by rows: sums in a fixed order, without atomics."""

    def __init__(self, index: Tensor, values: Tensor) -> None:
        n, width = index.shape
        self._cpu = values.device.type == "cpu"
        starts = torch.arange(0, n * width + 1, width, device=index.device)
        if self._cpu:
            from scipy.sparse import csr_array  # slow to load

            # SciPy's product of a sparse matrix with a few columns: torch's own is slower, and warns that it is new.
            small = torch.int32 if n * width < 2**31 else torch.int64  # half the memory to read
            # Copies: SciPy sorts rows in place.
            numbers = values.reshape(-1).numpy().copy()
            places = index.reshape(-1).to(small, copy=True).numpy()
            self._matrix = csr_array((numbers, places, starts.to(small).numpy()), shape=(n, n))
            self._matrix.sum_duplicates()
            self._transposed = self._matrix.T.tocsr()
            return
        columns, found = torch.sort(index.reshape(-1), stable=True)
        counts = torch.bincount(columns, minlength=n)
        begins = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        rows = torch.div(found, width, rounding_mode="floor")
        self._matrix = _compressed(starts, index.reshape(-1), values.reshape(-1), n)
        self._transposed = _compressed(begins, rows, values.reshape(-1)[found], n)

    def matmul(self, v: Tensor) -> Tensor:
        return self._product(self._matrix, v)

    def transposed_matmul(self, v: Tensor) -> Tensor:
        return self._product(self._transposed, v)

    def _product(self, matrix: Any, v: Tensor) -> Tensor:
        if self._cpu:
            return torch.from_numpy(matrix @ v.detach().contiguous().numpy())
        product: Tensor = matrix @ v
        return product


def _compressed(starts: Tensor, columns: Tensor, values: Tensor, n: int) -> Tensor:
    """(n, n) by compressed rows."""
    with warnings.catch_warnings():  # torch warns that such tensors are new, and that nothing is checked
        warnings.filterwarnings("ignore", message="Sparse ")
        return torch.sparse_csr_tensor(starts, columns, values, (n, n), check_invariants=False)
