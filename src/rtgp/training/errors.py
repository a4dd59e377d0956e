"""Errors and warnings of training."""

from __future__ import annotations

import sklearn.exceptions

from rtgp.errors import RTGPError


class TrainingError(RTGPError):
    """Training met a value it cannot go on from; the parameters are those of the last good step."""


class ConvergenceWarning(sklearn.exceptions.ConvergenceWarning):
    """Training ended before its optimum; the parameters are the best so far."""


class CheckpointError(RTGPError):
    """A checkpoint that cannot be read or written, that belongs to another problem, or that is in use."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was passed over for the one before it, or one could not be written."""
