"""How a run of conjugate gradients ends: at which precision, after how many products, and what it then says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtgp._preconditioners import Identity
from rtgp._solvers import CGStatus, Output, conjugate_gradients
from rtgp.truncation import fixed

N = 60


def system(n: int = N, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Of condition number 300."""
    generator = torch.Generator().manual_seed(1)
    q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
    matrix = q * torch.logspace(0.0, 2.5, n, dtype=torch.float64) @ q.T
    return matrix.to(dtype), torch.randn(n, 2, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, 1e-4), (torch.float64, 1e-8)])
def test_the_working_precision(dtype: torch.dtype, precision: float) -> None:
    """Errors fall by less than a half from one iteration to the next: another threshold would be seen."""
    matrix, rhs = system(300, dtype)
    run = conjugate_gradients(lambda v: matrix @ v, rhs[:, :1], fixed(None), [Output(0, None)], Identity())
    ratios = (run.squares[:, 0] / run.squares[0, 0]).sqrt()
    assert run.status is CGStatus.CONVERGED
    assert run.frozen == 1
    assert ratios[-1] <= precision < ratios[-2]
    assert ratios[-1] > 0.5 * ratios[-2]


@pytest.mark.parametrize(
    ("chunk", "keep", "products"), [(None, False, 5), (8, False, 8), (8, True, 5), (None, True, 5)]
)
def test_products_of_a_truncated_run(chunk: int | None, keep: bool, products: int) -> None:
    """One after another on a CPU; a chunk at once where one is asked for, but not with a basis, which needs each."""
    matrix, rhs = system()
    asked = []

    def matmul(v: Tensor) -> Tensor:
        asked.append(v)
        return matrix @ v

    kept = slice(0, 1) if keep else None
    run = conjugate_gradients(matmul, rhs, fixed(5), [Output(0, 0)], Identity(), chunk=chunk, keep_basis=kept)
    assert (run.iterations, run.status, run.frozen) == (5, CGStatus.TRUNCATED, 0)
    assert len(asked) == products
    assert (run.basis is not None) == keep


def test_a_column_of_zeros_is_solved_at_the_start() -> None:
    matrix, rhs = system()
    rhs[:, 1] = 0.0
    outputs = [Output(0, 0), Output(1, 0)]
    run = conjugate_gradients(lambda v: matrix @ v, rhs, fixed(3), outputs, Identity())
    assert (run.iterations, run.frozen) == (3, 1)
    assert not run.solutions[:, 1].any()
    nothing = conjugate_gradients(lambda v: matrix @ v, 0.0 * rhs, fixed(3), outputs, Identity())
    assert (nothing.iterations, nothing.status, nothing.frozen) == (0, CGStatus.CONVERGED, 2)
    assert (nothing.gamma.shape, nothing.beta.shape, nothing.squares.shape) == ((0, 2), (0, 2), (1, 2))
    assert nothing.weights.shape == (0, 1)
