"""A rank that dies, hangs or differs ends the job with a message that names it, and the checkpoint goes on."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import rtgp
from distributed import cases
from distributed.ranks import outcomes, run


@pytest.mark.parametrize(
    ("fault", "words", "timeout"),
    [
        ("killed", "Rank 1 gives no sign of life: it has died or is stopped", 60.0),
        pytest.param(
            "error", "Rank 1 has left: OutOfMemoryError: Training by RRCG on 120 points", 60.0, marks=pytest.mark.slow
        ),
        pytest.param("stopped", "Rank 1 gives no sign of life: it has died or is stopped", 5.0, marks=pytest.mark.slow),
        pytest.param("busy", "Rank 1 lives, but has not come to this operation", 5.0, marks=pytest.mark.slow),
    ],
)
def test_a_lost_rank_is_named_and_its_checkpoint_goes_on(
    fault: str, words: str, timeout: float, tmp_path: Path
) -> None:
    began = time.monotonic()
    (good, said), (other, _) = outcomes(
        2, cases.trained, "sharded", "average-information", str(tmp_path), fault, timeout=timeout
    )
    assert not good
    assert not other
    assert words in said
    assert ".." not in said
    assert time.monotonic() - began < timeout + 30.0
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "checkpoint-00000002.json",
        "checkpoint-00000004.json",
    ]
    # On another number of ranks, to what a run that was never interrupted comes to.
    wanted = cases.trained("dense")
    size = 3 if fault == "killed" else 1
    found = run(size, cases.trained, "sharded", "average-information", str(tmp_path))
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-6)


def test_a_checkpoint_goes_on_without_ranks_and_to_the_bit_on_as_many(tmp_path: Path) -> None:
    whole = run(2, cases.trained, "sharded")[0]
    outcomes(2, cases.trained, "sharded", "average-information", str(tmp_path / "a"), "stop")
    again = run(2, cases.trained, "sharded", "average-information", str(tmp_path / "a"))
    np.testing.assert_array_equal(again[0], whole)
    outcomes(2, cases.trained, "sharded", "average-information", str(tmp_path / "b"), "stop")
    np.testing.assert_allclose(cases.trained("auto", "average-information", str(tmp_path / "b")), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("seed", "seed (rank 0: 0; rank 1: 1)"),
        ("method", "optimizer (rank 0: average-information; rank 1: adam)"),
        ("version", f"version of rtgp (rank 0: {rtgp.__version__}; rank 1: 0.0)"),
        ("data", "The ranks differ in data (rank 0: "),
    ],
)
def test_a_difference_between_ranks_is_found_at_the_start(what: str, words: str) -> None:
    for good, said in outcomes(2, cases.trained_apart, what):
        assert not good
        assert said.startswith("DisagreementError: The ranks differ in ")
        assert words in said


def test_one_bit_of_difference_in_a_product_is_found() -> None:
    for good, said in outcomes(2, cases.product_of_different_vectors):
        assert not good
        assert "no longer work on the same numbers" in said


@pytest.mark.parametrize("what", ["parameters", "generator"])
def test_ranks_that_come_apart_in_training_are_found(what: str) -> None:
    for good, said in outcomes(2, cases.steps_apart, what):
        assert not good
        assert what in said.splitlines()[0]
        assert "of rank 1 and of rank 0 differ" in said
