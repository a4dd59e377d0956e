"""Errors and warnings of training."""

from __future__ import annotations

from typing import Any

from rtgp.errors import RTGPError


class TrainingError(RTGPError):
    """Training met a value it cannot go on from; the parameters are those of the last good step."""


class CheckpointError(RTGPError):
    """A checkpoint that cannot be read or written, that belongs to another problem, or that is in use."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was passed over for the one before it, or one could not be written."""


def __getattr__(name: str) -> Any:
    """`ConvergenceWarning`: training ended before its optimum, at the best parameters so far. It is scikit-learn's,
    which is loaded with its first use: importing rtgp does not wait for it."""
    if name == "ConvergenceWarning":
        from sklearn.exceptions import ConvergenceWarning

        return ConvergenceWarning
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
