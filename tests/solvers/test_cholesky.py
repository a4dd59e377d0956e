"""The inverse in place against torch's."""

from __future__ import annotations

import pytest
import torch

from rtgp._solvers.cholesky import cholesky_factor, invert_in_place
from rtgp.errors import NotPositiveDefiniteError


@pytest.mark.parametrize("n, panel", [(1, 4), (7, 3), (12, 4), (50, 16), (9, 20)])
def test_the_blocks_on_and_below_the_diagonal(n: int, panel: int) -> None:
    generator = torch.Generator().manual_seed(n)
    a = torch.randn(n, n, generator=generator, dtype=torch.float64)
    matrix = a @ a.T + torch.eye(n, dtype=torch.float64)
    got = invert_in_place(torch.linalg.cholesky(matrix), panel)
    wanted = torch.linalg.inv(matrix)
    for start in range(0, n, panel):
        rows = slice(start, min(start + panel, n))
        torch.testing.assert_close(got[rows, : rows.stop], wanted[rows, : rows.stop])


@pytest.mark.parametrize(
    "dtype, remedy", [(torch.float32, r"bound\), or use float64\.$"), (torch.float64, r"bound\)\.$")]
)
def test_the_remedy_is_one_that_is_left(dtype: torch.dtype, remedy: str) -> None:
    matrix = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=dtype)
    with pytest.raises(NotPositiveDefiniteError, match=remedy):
        cholesky_factor(matrix)
