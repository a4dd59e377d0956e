"""Training: optimisers, stopping, history, checkpoints."""

from typing import Any

from rtgp.training import _errors as _errors
from rtgp.training._choose import choose_method
from rtgp.training._errors import CheckpointError, CheckpointWarning, TrainingError
from rtgp.training._fit import fit
from rtgp.training._history import History, hyperparameters
from rtgp.training._result import FitInterrupted, FitResult, FitStatus

__all__ = [
    "CheckpointError",
    "CheckpointWarning",
    "FitInterrupted",
    "FitResult",
    "FitStatus",
    "History",
    "TrainingError",
    "choose_method",
    "fit",
    "hyperparameters",
]


def __getattr__(name: str) -> Any:
    if name == "ConvergenceWarning":  # scikit-learn's, loaded with its first use
        return _errors.ConvergenceWarning
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
