"""Same seed, same machine, same result: to the bit on a CPU, within a stated tolerance on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rtgp
import triton_mode
from gp_models import airports, make
from properties.eight import METHODS, NEW, data, fingerprint, fingerprints, fitted
from waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::rtgp.errors.ApproximationWarning")  # Fourier features, few of them
LIKELIHOODS = [name for name in METHODS if name not in ("svgp", "poe")]


def in_another_process(*arguments: str, threads: int) -> dict[str, dict[str, str]]:
    """As a user starts it: the number of threads comes from the environment, for NumPy and scikit-learn too."""
    script = Path(__file__).parent / "repeat_once.py"
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    done = subprocess.run(
        [sys.executable, str(script), str(threads), *arguments],
        env={**os.environ, **counts},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def differing(first: dict[str, dict[str, str]], second: dict[str, dict[str, str]]) -> list[str]:
    assert first.keys() == second.keys()
    return [f"{fit}: {key}" for fit, bits in first.items() for key in bits if bits[key] != second[fit][key]]


def test_two_processes() -> None:
    """All eight methods, four of them in each precision, here and in another process, with one thread."""
    assert differing(fingerprints(1, thorough=False), in_another_process(threads=1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_two_processes_one_and_two_threads(threads: int) -> None:
    """All eight methods in both precisions, in two other processes and in this one, whose threads are set while it
    runs: three times the same bits."""
    first, second = (in_another_process("thorough", threads=threads) for _ in range(2))
    assert differing(first, second) == []
    assert differing(fingerprints(threads, thorough=True), first) == []


@pytest.mark.parametrize("name", METHODS)
def test_another_seed_is_another_result(name: str) -> None:
    """Power: what is compared shows the random numbers, but for Cholesky, which has none."""
    other = rtgp.GPRegressor(method=METHODS[name], dtype="float64", steps=4, random_state=1).fit(*data())
    same = fingerprint(other) == fingerprint(fitted(name, *data()))
    assert same == (name == "cholesky")


def estimates(method: Any, generator: torch.Generator, device: str = "cpu") -> torch.Tensor:
    """Value and gradient of three calls in a row, in which preconditioner and warm start are handed on."""
    x, y = airports(80)
    model = make(x.to(device), y.to(device)).to(device)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator)
    found = []
    for _ in range(3):
        model.zero_grad()
        value = mll(model(x.to(device)), y.to(device))
        value.backward()
        found += [value.detach().reshape(1), *(p.grad.reshape(-1) for p in model.parameters())]
    return torch.cat(found)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_estimates_repeat_to_the_bit(name: str) -> None:
    first, second = (estimates(METHODS[name], torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_only_the_given_generator_is_drawn_from(name: str) -> None:
    """torch's own generator and NumPy's are left where they were, whatever their state."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = estimates(METHODS[name], torch.Generator().manual_seed(3))
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    torch.manual_seed(2)
    assert torch.equal(first, estimates(METHODS[name], torch.Generator().manual_seed(3)))


# On a GPU, sums may come in another order from run to run. Of a fit of a few steps, relative to the largest prediction.
GPU_TOLERANCE = {"float32": 1e-3, "float64": 1e-8}


@pytest.mark.gpu
@triton_mode.needs_cuda
@pytest.mark.parametrize("dtype", GPU_TOLERANCE)
@pytest.mark.parametrize("name", METHODS)
def test_on_a_gpu_within_the_documented_tolerance(name: str, dtype: str) -> None:
    """docs/numerical_limits.md has these figures."""
    found = []
    for _ in range(2):
        gp = rtgp.GPRegressor(method=METHODS[name], dtype=dtype, steps=4, random_state=0, device="cuda").fit(*data())
        found.append(np.concatenate(gp.predict(NEW, return_std=True)))
    assert np.abs(found[0] - found[1]).max() <= GPU_TOLERANCE[dtype] * np.abs(found[0]).max()
