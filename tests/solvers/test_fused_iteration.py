"""The fused kernels of conjugate gradients against the plain recurrence: on a card, or in Triton's interpreter."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

import triton_mode
from rtgp._preconditioners import Identity, LowRank
from rtgp._solvers import CGResult, Output, Recordings, cg, conjugate_gradients
from rtgp._solvers.fused_iteration import FusedIteration
from rtgp._solvers.iteration import Iteration
from rtgp.errors import ConvergenceError
from rtgp.truncation import fixed

devices = pytest.mark.parametrize("device", [triton_mode.CPU, triton_mode.GPU])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def system(n: int, r: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """A = L L^T + I + something small, a factor close to L, and right-hand sides; the second is done in one step."""
    generator = torch.Generator().manual_seed(n + r)
    factor = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    rest = torch.randn(n, n, generator=generator, dtype=torch.float64)
    matrix = factor @ factor.T + torch.eye(n, dtype=torch.float64) + rest @ rest.T / (2 * n)
    rhs = torch.randn(n, r, generator=generator, dtype=torch.float64)
    if r > 1:
        rhs[:, 1] = torch.linalg.eigh(matrix).eigenvectors[:, 0]
    return matrix.to(device, dtype), factor.to(device), rhs.to(device, dtype)


@triton_mode.needs_triton
@devices
@dtypes
@pytest.mark.parametrize("n, r", [(1, 1), (17, 11), (130, 3), (700, 20)])
@pytest.mark.parametrize("preconditioned", [True, False])
def test_the_same_recurrence(n: int, r: int, preconditioned: bool, dtype: torch.dtype, device: str) -> None:
    matrix, factor, rhs = system(n, r, dtype, device)
    # An eigenvector is solved in one step only without a preconditioner.
    preconditioner = LowRank(factor[:, : min(4, n)], dtype) if preconditioned else Identity()
    groups = [slice(0, 1)] if r == 1 else [slice(0, 1), slice(1, r)]
    settings = (lambda v: matrix @ v), rhs, preconditioner, 1e-3, groups, {0: float(n)}
    plain, fused = Iteration(*settings, None), FusedIteration(*settings, 3)
    # Rounding is amplified from step to step: the further a run, the less the two have in common.
    tolerance = 1e-3 if dtype == torch.float32 else 1e-6
    for _ in range(1 if dtype == torch.float32 else 3):
        chunks = plain.advance(3), fused.advance(3)
        torch.testing.assert_close(chunks[1].direction, chunks[0].direction, rtol=tolerance, atol=tolerance)
        wanted, got = (chunk.log() for chunk in chunks)
        torch.testing.assert_close(got.table, wanted.table, rtol=tolerance, atol=tolerance)
        for j in range(3):
            assert got.active(j) == wanted.active(j)
            assert got.positive(j) is wanted.positive(j)
            assert got.proxy(j) == pytest.approx(wanted.proxy(j), rel=tolerance, abs=1e-6)
    if not preconditioned and r > 1:
        assert not got.table[0, 3 * r + 1]


@triton_mode.needs_triton
@devices
def test_right_hand_sides_of_any_layout(device: str) -> None:
    matrix, factor, rhs = system(40, 3, torch.float64, device)
    preconditioner = LowRank(factor, torch.float64)
    found = []
    for layout in (rhs.contiguous(), rhs.T.contiguous().T, torch.cat([rhs, rhs], dim=1)[:, :3]):
        run = FusedIteration((lambda v: matrix @ v), layout, preconditioner, 1e-3, [slice(0, 3)], {}, 3)
        found.append(run.advance(3).log().table)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


@triton_mode.needs_triton
@devices
def test_negative_curvature_is_told(device: str) -> None:
    matrix, _, rhs = system(40, 3, torch.float64, device)
    settings = (lambda v: -matrix @ v), rhs, Identity(), 1e-3, [slice(0, 3)], {}
    assert FusedIteration(*settings, 2).advance(2).log().positive(0) is False
    broken = torch.full_like(matrix, math.nan)
    settings = (lambda v: broken @ v), rhs, Identity(), 1e-3, [slice(0, 3)], {}
    assert FusedIteration(*settings, 2).advance(2).log().positive(0) is False


@triton_mode.needs_triton
@triton_mode.needs_cuda
@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("n, rank, r", [(33, 5, 1), (2000, 300, 12), (700, 64, 3)])
def test_the_same_solve(n: int, rank: int, r: int, dtype: torch.dtype) -> None:
    """On a card `LowRank.solve` is fused; its reference is the same object on the CPU."""
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(n, rank, generator=generator, dtype=torch.float64) * torch.logspace(2, -2, rank).double()
    rhs = torch.randn(n, r, generator=generator, dtype=torch.float64).to(dtype)
    wanted, wanted_squares = LowRank(factor, torch.float64).solve(rhs.double())
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for layout in (rhs.cuda(), rhs.T.contiguous().cuda().T):
        got, squares = LowRank(factor.cuda(), dtype).solve(layout)
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(squares.cpu(), wanted_squares, rtol=tolerance, atol=tolerance)


@triton_mode.needs_triton
@devices
def test_runs_that_are_queued_ahead_are_the_same(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One recording for runs of many lengths, shorter ones after longer ones, and after one that ended in an error."""
    matrix, factor, _ = system(60, 4, torch.float64, device)
    preconditioner, recordings = LowRank(factor, torch.float64), Recordings()
    matrix = matrix + 20.0 * torch.diag(torch.linspace(0, 1, 60, dtype=torch.float64, device=device))
    chunks: list[int] = []
    advance = FusedIteration.advance
    monkeypatch.setattr(FusedIteration, "advance", lambda self, count: chunks.append(count) or advance(self, count))
    matmul = functools.partial(torch.matmul, matrix)
    outputs = [Output(0, 0), Output(1, None), Output(3, 0)]

    def solve(fused: bool, length: int | None, seed: int, limit: int | None = None) -> CGResult:
        monkeypatch.setattr(cg, "usable", lambda where: fused)
        rhs = torch.randn(60, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)
        rhs[:, 2] *= seed % 2
        return conjugate_gradients(
            matmul, rhs, fixed(length), outputs, preconditioner, groups=[slice(0, 1), slice(1, 4)],
            reference={0: 60.0}, tolerance=1e-9, chunk=4 if fused else 1, max_iterations=limit, recordings=recordings,
        )  # fmt: skip

    for seed, (length, queued) in enumerate([(15, 4), (15, 4), (6, 3), (16, 4), (16, 4), (1, 2)]):
        chunks.clear()
        got, wanted = solve(True, length, seed), solve(False, length, seed)
        assert (got.status, got.iterations, got.frozen) == (wanted.status, wanted.iterations, wanted.frozen)
        torch.testing.assert_close(got.solutions, wanted.solutions, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(got.gamma, wanted.gamma, rtol=1e-4, atol=1e-8)
        assert len(chunks) == queued  # at most one too many, and only after a longer run
        if seed == 3:
            with pytest.raises(ConvergenceError):
                solve(True, None, seed, limit=5)
