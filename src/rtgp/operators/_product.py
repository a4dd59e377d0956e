"""Products of a stored matrix with few columns."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

# Few columns make matrix libraries slow: on a CPU, 11 columns cost twice as much as 16, and oneDNN, which torch uses
# for float32 inside its linear layers only, takes 25 ms where its default takes 42 (n = 9600, 16 columns, 2 cores:
# benchmarks/results/stored_product.csv). Zero columns are cheaper than an odd number.
_COLUMNS = 8
_FEW = 48


def stored_product(matrix: Tensor, v: Tensor, symmetric: bool = False) -> Tensor:
    """matrix @ v for a contiguous matrix (m, k), fast for few columns. In float64 a symmetric one is better on the
    right: 82 ms where it takes 268 on the left (n = 9600, 16 columns, 2 cores; 95 and 73 with two columns)."""
    r = v.shape[1]
    if v.device.type != "cpu" or r == 1 or r > _FEW:
        return matrix @ v
    padded = -(-r // _COLUMNS) * _COLUMNS
    transposed = torch.nn.functional.pad(v, (0, padded - r)).T.contiguous()
    if symmetric and matrix.dtype == torch.float64:
        return (transposed @ matrix)[:r].T.contiguous()
    linear = _onednn_linear() if matrix.dtype == torch.float32 else None
    product = matrix @ transposed.T if linear is None else linear(matrix, transposed, None, "none", [], "")
    return product[:, :r]


@functools.cache
def _onednn_linear() -> Callable[..., Tensor] | None:
    """torch's own oneDNN product, x, w -> x w^T; None in builds without it."""
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return None
    linear: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
    return linear


_WIDE_ROWS = 256  # whose float64 copies stay in a CPU's cache


def wide_product(matrix: Tensor, v: Tensor) -> Tensor:
    """matrix @ v with products and sums in float64, a few rows at a time: no float64 copy of the whole."""
    wide = v.double()
    return torch.cat([rows.double() @ wide for rows in torch.split(matrix, _WIDE_ROWS)])


_WIDTH = 16  # columns that small blocks are multiplied by at once: 27 us where 11 of them take 106 (float32, 64 x 1024)


def padded_columns(v: Tensor) -> Tensor:
    """v (n, r) with columns of zeros up to what `sided_products` likes."""
    r = v.shape[1]
    return v if r <= 1 else torch.nn.functional.pad(v, (0, -r % _WIDTH))


def sided_products(k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """(k v, k^T w) of a small block k (m, c) that fits in a CPU's cache, v (c, r) and w (m, r). The fast order of the
    factors was measured: with k on the left float64 takes 1.5 to 4 times as long, and so does k^T in float32."""
    if v.shape[1] == 1:
        return k @ v, k.T @ w
    left = k @ v if k.dtype == torch.float32 else (v.T @ k.T).T
    return left, (w.T @ k).T
