"""What a posterior refuses to read: each error says what came and what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rtgp.errors import InputError, UnsupportedModelError
from rtgp.posterior import _checks as checks

X, Y = torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)


def model(*inputs: Tensor, targets: Tensor | None = Y) -> Any:
    return SimpleNamespace(train_inputs=inputs, train_targets=targets)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (model(), InputError, "Expected a model with training data"),
        (model(X, targets=None), InputError, r"model.set_train_data\(X, y\)"),
        (model(X, X), UnsupportedModelError, "Got 2: put them side by side"),
        (model(X[None]), UnsupportedModelError, r"Got \(1, 4, 2\): of a batch of models take one at a time"),
        (model(X[:0]), UnsupportedModelError, r"n > 0 here. Got \(0, 2\)"),
    ],
)
def test_training_inputs(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        checks.check_training_inputs(given)


def test_training_inputs_of_one_column() -> None:
    assert checks.check_training_inputs(model(X[:, 0])).shape == (4, 1)


def test_targets() -> None:
    assert checks.check_targets(Y, Y) is Y
    with pytest.raises(InputError, match=r"Expected training targets of shape \(4,\). Got \(3,\)"):
        checks.check_targets(Y[:3], Y)
    with pytest.raises(InputError, match="Got nan at row 2: drop that row"):
        checks.check_targets(torch.tensor([0.0, 1.0, torch.nan, 2.0]), Y)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ([0.1, 0.2], r"Got shape \(2,\): make the likelihood"),
        ([0.1, 0.0, 0.1, 0.1], "Got values between 0 and 0.1"),
        ([0.1, torch.inf, 0.1, 0.1], "Got values between 0.1 and inf"),
    ],
)
def test_noise(noise: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        checks.check_noise(SimpleNamespace(noise=torch.tensor(noise)), 4)
    assert checks.check_noise(SimpleNamespace(noise=torch.tensor([0.5])), 4).tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([[0.0, 1.0]], r"Got list: pass torch.as_tensor\(X\)"),
        (torch.zeros(3, 2, dtype=torch.complex64), "Expected real inputs. Got torch.complex64"),
        (torch.zeros(3, 5), r"\(3, 5\)"),
    ],
)
def test_new_inputs(points: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        checks.check_new_inputs(points, 2)
    assert checks.check_new_inputs(torch.zeros(3), 1).shape == (3, 1)
