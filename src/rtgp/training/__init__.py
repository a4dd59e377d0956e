"""Training: optimisers, stopping, history, checkpoints."""

from rtgp.training.choose import choose_method
from rtgp.training.errors import CheckpointError, CheckpointWarning, ConvergenceWarning, TrainingError
from rtgp.training.fit import fit
from rtgp.training.history import History, hyperparameters
from rtgp.training.result import FitInterrupted, FitResult, FitStatus

__all__ = [
    "CheckpointError",
    "CheckpointWarning",
    "ConvergenceWarning",
    "FitInterrupted",
    "FitResult",
    "FitStatus",
    "History",
    "TrainingError",
    "choose_method",
    "fit",
    "hyperparameters",
]
