"""Fits of several sizes in turn on a card: none fails, and none takes more memory than the first of its kind."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood

import rtgp
import triton_mode
from gp_models import Model
from left_over import OnPurposeError
from rtgp._ownership import without_cycles
from rtgp._preconditioners import Identity, PivotedCholesky
from rtgp._solvers import Output, conjugate_gradients
from rtgp.training._history import Row
from rtgp.truncation import fixed

pytestmark = [pytest.mark.gpu, triton_mode.needs_cuda]

SIZES = (500, 1_200, 3_000, 6_000, 12_000)
FITS = 60
FIRST = 20  # fits, one of each kind
FAILING, INTERRUPTED = 23, 41  # by a callback
# Of a given rank: one that is chosen follows the length of runs, which differs in the last digits from run to run.
METHOD = rtgp.RRCG(preconditioner=PivotedCholesky(100))


def model_of(n: int, matern: bool) -> Model:
    """GPyTorch's own cycles are cut, so that a model that is dropped is gone."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 4, generator=generator)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator)
    kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=4) if matern else RBFKernel(ard_num_dims=4))
    return without_cycles(Model(x, y, GaussianLikelihood(), kernel).cuda())


def fit(n: int, matern: bool, predict: bool, error: type[BaseException] | None = None) -> tuple[int, int]:
    """Bytes that are allocated afterwards, with the model still there, and at the most."""

    def callback(row: Row, model: Any) -> bool:
        if error is not None and row["step"] == 2:
            raise error
        return False

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    model = model_of(n, matern)
    x, y = model.train_inputs[0], model.train_targets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so few steps
        rtgp.fit(model, model.likelihood, x, y, method=METHOD, steps=5, callback=callback)
        if predict:
            at = rtgp.posterior(model, model.likelihood, method="cg")
            assert bool(torch.isfinite(at.mean(x[:100])).all())
            assert bool((at.variance(x[:100]) > 0).all())
            at.release()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def test_one_fit_after_the_other() -> None:
    """The peak of a size is the largest of its first four fits. How many runs are recorded depends on their lengths,
    which rounding changes from one fit to the next: about one fit in fifty has a higher peak than others of its size.
    What grows stays, so a fit with a higher peak is done again, twice if need be. False alarms: 1 in 10^4."""
    fit(SIZES[0], matern=False, predict=True)  # what libraries take for good
    first: dict[tuple[int, bool, bool], int] = {}
    peaks: dict[int, int] = {}
    for k in range(FITS):
        n, matern, predict = SIZES[k % len(SIZES)], bool(k % 2), bool(k // len(SIZES) % 2)
        if k in (FAILING, INTERRUPTED):
            error = OnPurposeError if k == FAILING else KeyboardInterrupt
            with pytest.raises(error):
                fit(n, matern, predict, error)
            continue
        for left in reversed(range(1 if k < FIRST else 3)):
            held, most = fit(n, matern, predict)
            early = first.setdefault((n, matern, predict), held)
            assert held <= 1.02 * early, f"fit {k} of {n} points: {held} bytes held, {early} at first"
            if k < FIRST:
                peaks[n] = max(most, peaks.get(n, 0))
            if most <= 1.02 * peaks[n]:
                break
            assert left, f"fit {k} of {n} points: {most} bytes at the most, {peaks[n]} at first"


def test_no_collection_comes_while_the_card_records() -> None:
    """The fault that was found: an earlier objective was freed by one, and the recording was lost."""
    recording: list[bool] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        recording.append(torch.cuda.is_current_stream_capturing())

    thresholds = gc.get_threshold()
    gc.set_threshold(20)  # often
    gc.callbacks.append(watch)
    try:
        for n in (500, 1_200, 500):
            fit(n, matern=False, predict=False)
    finally:
        gc.callbacks.remove(watch)
        gc.set_threshold(*thresholds)
    assert len(recording) > 100
    assert not any(recording)


def test_a_recording_that_fails_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    """An operation that no capture allows: the solution is the same, and the card can be used afterwards."""
    matrix = torch.diag(torch.linspace(1.0, 50.0, 300, dtype=torch.float64)).cuda()
    rhs = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cuda()

    def matmul(v: torch.Tensor) -> torch.Tensor:
        float(v.sum())  # waits for the card
        return matrix @ v

    for _ in range(3):
        caplog.clear()
        found = conjugate_gradients(
            matmul, rhs, fixed(None), [Output(k, None) for k in range(3)], Identity(), tolerance=1e-9
        )
        torch.testing.assert_close(found.solutions, torch.linalg.solve(matrix, rhs), rtol=1e-6, atol=1e-6)
        assert len([line for line in caplog.records if "could not be recorded" in line.getMessage()]) == 1
    fit(500, matern=False, predict=True)
