"""The hyperparameters of a trained model, whatever its kind, under the names people know."""

from __future__ import annotations

from typing import Any

from rtgp.models import ExpertsModel, VariationalModel
from rtgp.training import hyperparameters
from rtgp.training.experts import median_hyperparameters


def hyperparameters_of(model: Any) -> dict[str, float]:
    """name -> value in constrained units; of a product of experts the median over experts."""
    if isinstance(model, ExpertsModel):
        return median_hyperparameters(model)
    if isinstance(model, VariationalModel):
        return hyperparameters(model.hyperparameter_modules())
    return hyperparameters(model)
