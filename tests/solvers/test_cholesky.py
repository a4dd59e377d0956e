"""The inverse in place against torch's."""

from __future__ import annotations

import pytest
import torch

from rtgp.solvers.cholesky import invert_in_place


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
