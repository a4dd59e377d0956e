"""Experts divided among ranks: the parameters, history and predictions of one process, and errors of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rtgp
from distributed import cases
from distributed.ranks import outcomes, run
from rtgp.errors import SettingError

SIZES = (1, 2, 3)


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    """Of one process, of one thread like every rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = cases.all_experts("auto")
    torch.set_num_threads(threads)
    return found


@pytest.fixture(scope="module", params=[*SIZES[:-1], pytest.param(SIZES[-1], marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return run(request.param, cases.all_experts, "sharded")


@pytest.mark.parametrize("case", cases.EXPERTS)
def test_training_and_predictions_are_those_of_one_process(
    found: list[dict[str, Any]], wanted: dict[str, Any], case: str
) -> None:
    for rank in found:
        assert rank[case].keys() == wanted[case].keys()
        for name, value in wanted[case].items():
            if name != "held":
                np.testing.assert_allclose(rank[case][name], value, rtol=1e-6, atol=1e-9, err_msg=name)
                np.testing.assert_array_equal(rank[case][name], found[0][case][name], err_msg=name)
    assert wanted[case]["loss"][-1] < wanted[case]["loss"][0]


@pytest.mark.parametrize("case", cases.EXPERTS)
def test_each_rank_holds_its_share(found: list[dict[str, Any]], case: str) -> None:
    n, size, _ = cases.EXPERTS[case]
    count, held = -(-n // size), [rank[case]["held"] for rank in found]
    assert sum(held) == count
    assert max(held) - min(held) <= 1


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("seed", "DisagreementError: The ranks differ in points of the experts (the data, or the seed) (rank 0: "),
        ("steps", "DisagreementError: The ranks differ in steps (rank 0: 3; rank 1: 4)"),
        ("indefinite", "NotPositiveDefiniteError: The covariance of 1 of 3 experts is not positive definite"),
        ("NaN", "TrainingError: Expected a finite loss and gradient of every expert"),
        ("points", "DisagreementError: The ranks no longer work on the same numbers"),
    ],
)
def test_what_goes_wrong_on_one_rank_is_an_error_of_all(what: str, words: str) -> None:
    for good, said in outcomes(2, cases.experts_apart, what):
        assert not good
        assert said.startswith(words)


def test_a_model_of_many_ranks_is_saved_for_one(tmp_path: Path) -> None:
    for rank in run(2, cases.saved_experts, str(tmp_path)):
        assert rank == "POE(expert_size=31, operator='sharded')"
    gp = rtgp.GPRegressor.load(tmp_path / "model")
    assert gp.method_ == gp.method == rtgp.POE(31)
    assert len(gp.model_) == 5
    one = cases.fitted_experts("auto")
    X, _ = cases.airports(170)
    for many, alone in zip(
        gp.predict(X.numpy(), return_std=True), one.predict(X.numpy(), return_std=True), strict=True
    ):
        np.testing.assert_allclose(many, alone, rtol=1e-6)


def test_the_setting_says_what_it_knows() -> None:
    with pytest.raises(SettingError, match=r"must be 'auto' or 'sharded': experts are divided.* Got 'dense' instead"):
        rtgp.POE(operator="dense")
    with pytest.raises(SettingError, match="needs a group of processes"):
        cases.fitted_experts("sharded")
