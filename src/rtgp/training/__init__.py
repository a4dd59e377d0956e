"""Training: optimisers, stopping, history, checkpoints."""

from typing import Any

from rtgp.training import errors as _errors
from rtgp.training.choose import choose_method
from rtgp.training.errors import CheckpointError, CheckpointWarning, TrainingError
from rtgp.training.fit import fit
from rtgp.training.history import History, hyperparameters
from rtgp.training.result import FitInterrupted, FitResult, FitStatus

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
