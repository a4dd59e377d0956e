"""Products of a stored matrix with few columns."""

from __future__ import annotations

import pytest
import torch

from rtgp.operators._product import stored_product


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 2, 8, 11, 17, 48, 60])
def test_is_the_product(dtype: torch.dtype, columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(130, 130, generator=generator, dtype=dtype)
    v = torch.randn(130, columns, generator=generator, dtype=dtype)
    both = matrix + matrix.T
    close = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-13, "atol": 1e-12}
    torch.testing.assert_close(stored_product(matrix, v), (matrix.double() @ v.double()).to(dtype), **close)
    torch.testing.assert_close(stored_product(both, v, symmetric=True), (both.double() @ v.double()).to(dtype), **close)
