"""What a few iterations say of a preconditioner."""

from __future__ import annotations

import math

import pytest
import torch

from rtgp._preconditioners.protocol import Identity
from rtgp._preconditioners.trial import TrialSettings, smallest_residual, tried
from rtgp._solvers import NoiseUnits, Output, conjugate_gradients
from rtgp.truncation import fixed


def spd(n: int, condition: float) -> torch.Tensor:
    basis, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    return (basis * torch.logspace(0.0, math.log10(condition), n, dtype=torch.float64)) @ basis.T


@pytest.mark.parametrize("iterations", [1, 3, 8])
def test_the_smallest_residual_is_that_of_least_squares(iterations: int) -> None:
    """The minimum of |b - A x| over the Krylov space, from its basis: slow, and another way."""
    a, b = spd(60, 1e4), torch.randn(60, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    run = conjugate_gradients(lambda v: a @ v, b, fixed(iterations), [Output(0, None)], Identity(60))
    power, space = b, []
    for _ in range(iterations):
        space.append(power / power.norm())
        power = a @ space[-1]
    basis, _ = torch.linalg.qr(torch.cat(space, dim=1))
    fit = torch.linalg.lstsq(a @ basis, b).solution
    assert smallest_residual(run) == pytest.approx(float((b - a @ basis @ fit).norm() / b.norm()), rel=1e-8)


def test_it_never_rises_where_that_of_conjugate_gradients_does() -> None:
    a, b = spd(200, 1e6), torch.ones(200, 1, dtype=torch.float64)
    runs = [
        conjugate_gradients(lambda v: a @ v, b, fixed(count), [Output(0, None)], Identity(200))
        for count in range(1, 12)
    ]
    smallest = [smallest_residual(run) for run in runs]
    assert smallest == sorted(smallest, reverse=True)
    assert float(runs[-1].squares.max()) > 2.0 * float(runs[-1].squares[0])


@pytest.mark.parametrize("condition", [2.0, 1e3, 1e6])
def test_predictions_are_of_the_size_of_runs(condition: float) -> None:
    """Three times too long at the most, and six times too short: runs slow down."""
    n, a = 400, spd(400, condition)

    class System:
        size, device, dtype = n, torch.device("cpu"), torch.float64

        def matmul(self, v):
            return a @ v

    system: NoiseUnits = System()  # type: ignore[assignment]
    found = tried(Identity(n), system, torch.Generator().manual_seed(0), TrialSettings())
    signs = torch.randint(0, 2, (n, 4), generator=torch.Generator().manual_seed(1)).double() * 2.0 - 1.0
    run = conjugate_gradients(lambda v: a @ v, signs, fixed(400), [Output(0, None)], Identity(n))
    needed = int((run.squares.mean(1).sqrt() > 1e-2 * math.sqrt(n)).sum())
    assert needed / 6.0 <= found.iterations <= 3.0 * needed
