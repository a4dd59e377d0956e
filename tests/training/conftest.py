"""Small problems and their training, for all tests of training."""

from __future__ import annotations

import pytest
import torch

from gp_models import airports, make


@pytest.fixture(scope="session")
def data():
    return airports(120)


@pytest.fixture
def problem(data):
    """A new model with its likelihood and data, as `fit` takes them."""
    X, y = data

    def new(**parts):
        model = make(X, y, **parts)
        return model, model.likelihood, X, y

    return new


@pytest.fixture
def values():
    """All parameters of a model, by name."""

    def of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    return of
