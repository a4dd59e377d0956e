"""Decisions taken once per chunk of iterations are those that would be taken after every iteration."""

from __future__ import annotations

import pytest
import torch

from rtgp._preconditioners import Identity
from rtgp._solvers import Output, conjugate_gradients
from rtgp.errors import ConvergenceError, NotPositiveDefiniteError
from rtgp.truncation import ExponentialDecay, ResidualDriven, coupled_pair, fixed, russian_roulette

N = 40
OUTPUTS = [Output(0, 0), Output(0, 1), Output(0, None), Output(1, 2), Output(2, 2)]


def system(condition: float = 1e4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(N, N, generator=generator, dtype=torch.float64))[0]
    matrix = q * torch.logspace(0, torch.tensor(condition).log10(), N, dtype=torch.float64) @ q.T
    return matrix, torch.randn(N, 3, generator=generator, dtype=torch.float64)


WEIGHTINGS = {
    "residual-driven pair": lambda: coupled_pair(ResidualDriven(), uniforms=(0.3, 0.02)),
    "long pair": lambda: coupled_pair(ResidualDriven(), uniforms=(0.9, 1e-9)),
    "hand-set roulette": lambda: russian_roulette(ExponentialDecay(0.3, 2), 3, uniforms=(0.5, 0.9, 0.01)),
    "plain": lambda: fixed(7, 3),
    "to the end": lambda: fixed(None, 3),
}


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("chunk", [2, 8, 100])
def test_same_run(weighting: str, chunk: int) -> None:
    matrix, rhs = system()
    runs = [
        conjugate_gradients(
            lambda v: matrix @ v,
            rhs,
            WEIGHTINGS[weighting](),
            OUTPUTS,
            Identity(),
            groups=[slice(0, 1), slice(1, 3)],
            reference={0: float(N)},
            chunk=size,
        )
        for size in (1, chunk)
    ]
    one, many = runs
    assert (many.iterations, many.truncations, many.status, many.frozen) == (
        *(one.iterations, one.truncations, one.status, one.frozen),
    )
    assert many.residual == one.residual
    for name in ("gamma", "beta", "squares", "weights"):
        torch.testing.assert_close(getattr(many, name), getattr(one, name), rtol=0, atol=0)
    torch.testing.assert_close(many.solutions, one.solutions, rtol=1e-12, atol=1e-12)


def test_nothing_is_computed_beyond_what_is_asked_for_one_by_one() -> None:
    matrix, rhs = system()
    products = []

    def matmul(v: torch.Tensor) -> torch.Tensor:
        products.append(v)
        return matrix @ v

    run = conjugate_gradients(matmul, rhs, fixed(5), [Output(0, None)], Identity(), chunk=1)
    assert run.iterations == 5
    assert len(products) == 5


@pytest.mark.parametrize("chunk", [1, 8])
def test_errors_only_within_the_run(chunk: int) -> None:
    """An indefinite matrix is an error where the run meets it, and not where a chunk runs on after its end."""
    matrix, rhs = system(10.0)
    matrix = matrix - 1.5 * torch.eye(N, dtype=torch.float64)
    outputs = [Output(0, None)]
    conjugate_gradients(lambda v: matrix @ v, rhs, fixed(1), outputs, Identity(), chunk=chunk)
    with pytest.raises(NotPositiveDefiniteError, match="iteration"):
        conjugate_gradients(lambda v: matrix @ v, rhs, fixed(None), outputs, Identity(), chunk=chunk)
    definite, rhs = system(1e4)
    with pytest.raises(ConvergenceError, match="in 3 iterations"):
        conjugate_gradients(
            lambda v: definite @ v, rhs, fixed(None), outputs, Identity(), chunk=chunk, max_iterations=3
        )
