"""1, 2 and 3 processes compute what one process computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from distributed import cases
from distributed.ranks import run

SIZES = (1, 2, 3)
EXACT = 1e-13  # sums in another order
AGREED = 1e-6


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    """By the operators of one process, of one thread like every rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = cases.everything(lambda local: local)
    torch.set_num_threads(threads)
    return found


@pytest.fixture(scope="module", params=[*SIZES[:-1], pytest.param(SIZES[-1], marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Of every rank."""
    return run(request.param, cases.everything_spread)


def test_every_rank_has_the_same_bits(found: list[dict[str, Any]]) -> None:
    """Or one would stop before the others."""
    for other in found[1:]:
        for case, values in found[0].items():
            for name, value in values.items():
                np.testing.assert_array_equal(other[case][name], value, err_msg=f"{case}, {name}")


CASES = {
    "dense, rbf": EXACT,
    "tiled, a sum of kernels": EXACT,
    "fewer points than ranks": EXACT,
    "gradients of cg": AGREED,
    "gradients of rr-cg": AGREED,
    "gradients of the paper's rr-cg": AGREED,
    "gradients of rr-cg, tiled, a sum of kernels": AGREED,
    "posterior": AGREED,
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_one_process_computes(found: list[dict[str, Any]], wanted: dict[str, Any], case: str) -> None:
    assert found[0].keys() == wanted.keys() == CASES.keys()
    assert found[0][case].keys() == wanted[case].keys()
    for name, value in wanted[case].items():
        scale = max(np.abs(value).max(initial=0.0), 1e-300)
        np.testing.assert_allclose(found[0][case][name] / scale, value / scale, rtol=0, atol=CASES[case], err_msg=name)


@pytest.mark.parametrize("size", SIZES)
def test_memory_falls_with_the_number_of_ranks(size: int) -> None:
    n, most = cases.N, -(-cases.N // size)
    kernel, factor = zip(*run(size, cases.stored_numbers, n), strict=True)
    assert sum(kernel) == n * n
    assert max(kernel) == n * most
    assert sum(factor) == n * 10
    assert max(factor) == most * 10


@pytest.mark.parametrize("optimizer", ["average-information", pytest.param("adam", marks=pytest.mark.slow)])
def test_training(optimizer: str) -> None:
    found = run(2, cases.trained, "sharded", optimizer)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_allclose(found[0], cases.trained("dense", optimizer), rtol=0, atol=1e-6)
