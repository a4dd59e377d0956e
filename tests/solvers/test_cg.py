"""Conjugate gradients on right-hand sides of any size."""

from __future__ import annotations

import pytest
import torch

from rtgp._preconditioners import Identity
from rtgp._solvers import CGResult, Output, conjugate_gradients
from rtgp.truncation import fixed


@pytest.mark.parametrize("dtype, power", [(torch.float32, -84), (torch.float32, 60), (torch.float64, -600)])
def test_columns_of_any_size(dtype: torch.dtype, power: int) -> None:
    """The recurrence is linear; its scalars, quadratic in a column, would leave the range of the dtype. A power of two
    changes no digit of the solution."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    matrix = (root @ root.T + torch.eye(30)).to(dtype)
    rhs = torch.randn(30, 2, generator=generator, dtype=torch.float64).to(dtype)
    scale = torch.tensor([1.0, 2.0**power], dtype=dtype)
    outputs = [Output(0, None), Output(1, None)]

    def solve(b: torch.Tensor) -> CGResult:
        return conjugate_gradients(lambda v: matrix @ v, b, fixed(None), outputs, Identity())

    plain, scaled = solve(rhs), solve(rhs * scale)
    assert torch.equal(scaled.solutions, plain.solutions * scale)
    assert torch.equal(scaled.squares, plain.squares * scale.double().square())
    assert scaled.iterations == plain.iterations
